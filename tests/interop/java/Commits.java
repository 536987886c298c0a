import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;

/**
 * Offsets once a second from the start on: by itself Java's client sends the first ones ten seconds after its start. It ends
 * before Java's own timer begins, and `close` waits for it: what shutdown() sends is the last.
 */
final class Commits implements AutoCloseable {
    private static final int JAVAS_FIRST_S = 10;
    private static final int CLOSE_MAX_S = 60;
    private final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1);

    Commits(DefaultMQPushConsumer consumer) {
        timer.setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
        for (int second = 1; second < JAVAS_FIRST_S; second++) {
            timer.schedule(consumer.getDefaultMQPushConsumerImpl()::persistConsumerOffset, second, TimeUnit.SECONDS);
        }
    }

    @Override
    public void close() throws InterruptedException {
        timer.shutdown();
        if (!timer.awaitTermination(CLOSE_MAX_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("offsets are still being sent after " + CLOSE_MAX_S + " s");
        }
    }
}
