import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Features NAME_SERVER TOPIC: request-reply with this process on both sides, and what 5.x has in addition: timers to the
 * millisecond, and one that is taken back. Prints a line for each. What 4.9 does not have is called by its name.
 */
public class Features {
    private static final BlockingQueue<String> SEEN = new LinkedBlockingQueue<>();
    private static final Set<String> BODIES = Collections.synchronizedSet(new TreeSet<>());

    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("features_producer");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        producer.send(new Message(args[1], "first".getBytes(StandardCharsets.UTF_8)));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("features_consumer");
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                consumed(producer, message);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        take("first");
        Message asked = new Message(args[1], "ask", "question".getBytes(StandardCharsets.UTF_8));
        // A client of its own, that knows no route: only then a producer sends its heartbeat before it asks.
        DefaultMQProducer asking = new DefaultMQProducer("features_asking");
        asking.setNamesrvAddr(args[0]);
        asking.setInstanceName("asking");
        asking.start();
        System.out.println("REPLY " + text(asking.request(asked, 30_000)));
        asking.shutdown();
        if (args.length > 2) {
            timers(producer, args[1]);
        }
        consumer.shutdown();
        producer.shutdown();
        System.out.println("ENDED");
        System.exit(0);
    }

    private static void consumed(DefaultMQProducer producer, MessageExt message) {
        String body = text(message);
        BODIES.add(body);
        SEEN.add(body + " " + System.currentTimeMillis());
        if (body.equals("question")) {
            try {
                producer.send(MessageUtil.createReplyMessage(message, "answer".getBytes(StandardCharsets.UTF_8)));
            } catch (Exception error) {
                System.out.println("NO REPLY " + error);
            }
        }
    }

    private static void timers(DefaultMQProducer producer, String topic) throws Exception {
        long due = System.currentTimeMillis() + 1_234;
        Message deliver = new Message(topic, "deliver".getBytes(StandardCharsets.UTF_8));
        Message.class.getMethod("setDeliverTimeMs", long.class).invoke(deliver, due);
        producer.send(deliver);
        System.out.println("TIMER " + (take("deliver") >= due ? "in time" : "early"));
        Message recalled = delayed(topic, "recalled", 8_000); // a machine may be this slow to take it back
        SendResult sent = producer.send(recalled);
        String handle = (String) SendResult.class.getMethod("getRecallHandle").invoke(sent);
        Object id = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
            .invoke(producer, topic, handle);
        System.out.println("RECALLED " + sent.getMsgId().equals(id));
        producer.send(delayed(topic, "later", 9_000));
        take("later");
        System.out.println("CONSUMED " + String.join(",", BODIES));
    }

    private static Message delayed(String topic, String body, long delay) throws Exception {
        Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
        Message.class.getMethod("setDelayTimeMs", long.class).invoke(message, delay);
        return message;
    }

    /** When the consumer saw that body. */
    private static long take(String body) throws InterruptedException {
        while (true) {
            String seen = SEEN.poll(150, TimeUnit.SECONDS);
            if (seen == null) {
                throw new IllegalStateException(body + " did not come");
            }
            if (seen.startsWith(body + " ")) {
                return Long.parseLong(seen.substring(body.length() + 1));
            }
        }
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
