import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Bench NAME_SERVER GROUP TOPIC BATCH WARM_UP COUNT LATENCIES: the consumer that bench/java.py compares with, 20 threads,
 * its listener doing nothing. Prints "RATE messages seconds" for what comes after the first WARM_UP messages until COUNT;
 * LATENCIES, if not "-", is a file that gets the milliseconds from store to listener of each message after the first
 * WARM_UP.
 */
public class Bench implements MessageListenerConcurrently {
    private final long warmUp;
    private final long count;
    private final double[] latencies;
    private final AtomicLong seen = new AtomicLong();
    private final CountDownLatch end = new CountDownLatch(1);
    private volatile long begin;
    private volatile long first;

    private Bench(long warmUp, long count, boolean measuresLatency) {
        this.warmUp = warmUp;
        this.count = count;
        this.latencies = measuresLatency ? new double[(int) count] : null;
    }

    @Override
    public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
        double nowMs = 0;
        if (latencies != null) {
            Instant now = Instant.now();
            nowMs = now.getEpochSecond() * 1000.0 + now.getNano() / 1e6;
        }
        int size = messages.size();
        long before = seen.getAndAdd(size);
        if (latencies != null) {
            for (int index = 0; index < size && before + index < count; index++) {
                latencies[(int) before + index] = nowMs - messages.get(index).getStoreTimestamp();
            }
        }
        if (before < warmUp && before + size >= warmUp) {
            first = before + size;
            begin = System.nanoTime();
            System.out.println("WARM");
            System.out.flush();
        }
        if (before < count && before + size >= count) {
            System.out.println("RATE " + (count - first) + " " + (System.nanoTime() - begin) / 1e9);
            System.out.flush();
            end.countDown();
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    public static void main(String[] args) throws Exception {
        Bench bench = new Bench(Long.parseLong(args[4]), Long.parseLong(args[5]), !args[6].equals("-"));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(20);
        consumer.setConsumeThreadMax(20);
        consumer.setConsumeMessageBatchMaxSize(Integer.parseInt(args[3]));
        consumer.subscribe(args[2], "*");
        consumer.registerMessageListener(bench);
        consumer.start();
        System.out.println("STARTED");
        System.out.flush();
        bench.end.await();
        consumer.shutdown();
        if (bench.latencies != null) {
            try (PrintStream file = new PrintStream(args[6], StandardCharsets.UTF_8)) {
                for (int index = (int) bench.warmUp; index < bench.latencies.length; index++) {
                    file.println(bench.latencies[index]);
                }
            }
        }
        System.exit(0);
    }
}
