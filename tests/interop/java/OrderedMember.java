import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * OrderedMember NAME_SERVER GROUP TOPIC TRACE: a genuine orderly member, with the rule of ordered_handlers.by_queue (every
 * 50th number suspends its queue twice), and its lines in the same file. The end of stdin ends it.
 */
public class OrderedMember {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // Without a wait Java unlocks its queues, and ends, while its last calls still run.
        consumer.setAwaitTerminationMillisWhenShutdown(30_000);
        consumer.setPollNameServerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.subscribe(args[2], "*");
        FileOutputStream trace = new FileOutputStream(args[3], true);
        consumer.registerMessageListener(new Numbers(trace));
        consumer.start();
        Commits commits = new Commits(consumer);
        System.out.println("STARTED");
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (asked.readLine() != null) {
            // nothing is asked
        }
        commits.close();
        consumer.shutdown();
        System.out.println("ENDED");
        System.exit(0);
    }

    private static class Numbers implements MessageListenerOrderly {
        private final FileOutputStream trace;

        Numbers(FileOutputStream trace) {
            this.trace = trace;
        }

        private void tell(String what, MessageExt message, String number) {
            try {
                trace.write((what + " " + ProcessHandle.current().pid() + " " + message.getTopic() + " " + message.getQueueId()
                    + " " + message.getQueueOffset() + " - " + number + " " + message.getReconsumeTimes() + " 0\n")
                    .getBytes(StandardCharsets.UTF_8));
            } catch (java.io.IOException error) {
                throw new IllegalStateException(error);
            }
        }

        @Override
        public ConsumeOrderlyStatus consumeMessage(List<MessageExt> messages, ConsumeOrderlyContext context) {
            MessageExt message = messages.get(0);
            String number = new String(message.getBody(), StandardCharsets.UTF_8).trim();
            tell("BEGIN", message, number);
            if (Integer.parseInt(number) % 50 == 7 && message.getReconsumeTimes() < 2) {
                context.setSuspendCurrentQueueTimeMillis(20);
                tell("FAIL", message, number);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            tell("END", message, number);
            return ConsumeOrderlyStatus.SUCCESS;
        }
    }
}
