import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Member NAME_SERVER GROUP TOPIC [popping]: a genuine member of a group, with the rule of numbers_handler.number: every 50th number
 * fails twice, every 1000th always. With a fourth word, "popping", the broker assigns the queues (5.x). A line "queues" on stdin asks which queues of the topic it has; the end of stdin ends it.
 */
public class Member {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(3);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        // Without a wait Java ends before the results of its last calls are counted in its offsets.
        consumer.setAwaitTerminationMillisWhenShutdown(30_000);
        consumer.setPollNameServerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        if (args.length > 3) {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        consumer.subscribe(args[2], "*");
        consumer.registerMessageListener(new Numbers());
        consumer.start();
        Commits commits = new Commits(consumer);
        say("STARTED");
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (asked.readLine() != null) {
            say("QUEUES " + queues(consumer, args[2]));
        }
        commits.close();
        consumer.shutdown();
        say("ENDED");
        System.exit(0);
    }

    private static String queues(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(topic)).map(MessageQueue::getQueueId).sorted()
            .map(String::valueOf).collect(Collectors.joining(","));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static class Numbers implements MessageListenerConcurrently {
        @Override
        public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            MessageExt message = messages.get(0);
            int number = Integer.parseInt(new String(message.getBody(), StandardCharsets.UTF_8).trim());
            int times = message.getReconsumeTimes();
            if (number % 1000 == 999 || number % 50 == 7 && times < 2) {
                say("FAILED " + number + " " + times);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            say("DONE " + number + " " + times + " " + message.getTopic());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }
    }
}
