import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Scripted NAME_SERVER GROUP TOPIC EXPRESSION: a genuine consumer that does with each message what its property "rule"
 * says, as script_handler.py does, and prints what it saw. The end of stdin ends it.
 */
public class Scripted {
    public static void main(String[] args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[1]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMaxReconsumeTimes(2);
        // Without a wait Java ends before the results of its last calls are counted in its offsets.
        consumer.setAwaitTerminationMillisWhenShutdown(30_000);
        consumer.setPollNameServerInterval(1000);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.subscribe(args[2], args[3]);
        consumer.registerMessageListener(new Rules());
        consumer.start();
        Commits commits = new Commits(consumer);
        say("STARTED");
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        while (asked.readLine() != null) {
            say("STILL HERE");
        }
        commits.close();
        consumer.shutdown();
        say("ENDED");
        System.exit(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static class Rules implements MessageListenerConcurrently {
        @Override
        public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            MessageExt message = messages.get(0);
            int times = message.getReconsumeTimes();
            say(String.join("\t", "SEEN", message.getUserProperty("number"), String.valueOf(times), message.getTopic(),
                String.valueOf(message.getQueueId()), String.valueOf(message.getBody().length),
                MessageDecoder.messageProperties2String(message.getProperties())));
            String[] rule = message.getUserProperty("rule").split(":");
            if (times >= Integer.parseInt(rule[1])) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            switch (rule[0]) {
                case "throw":
                    throw new IllegalStateException("as the script says");
                case "none":
                    return null;
                case "level":
                    context.setDelayLevelWhenNextConsume(Integer.parseInt(rule[2]));
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                default:
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        }
    }
}
