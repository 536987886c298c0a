import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Crowd NAME_SERVER: genuine consumers that come and go by lines on stdin:
 * "join NAME GROUP TOPIC FILTER STRATEGY MODEL WHERE INSTANCE", "leave NAME", "queues", "first NAME TOPIC". A blank in a
 * filter is written as "+"; "-" as the strategy is Java's own, and as the instance a new one. A strategy may have an argument
 * behind a "=", blanks in it as "+"; and WHERE a time behind a "=". Says JOINED, LEFT, QUEUES, FIRST, and DONE NAME NUMBER
 * for each message.
 */
public class Crowd {
    private static final Map<String, DefaultMQPushConsumer> MEMBERS = new LinkedHashMap<>();

    public static void main(String[] args) throws Exception {
        System.out.println("READY");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "join":
                    join(args[0], words);
                    break;
                case "leave":
                    MEMBERS.remove(words[1]).shutdown();
                    say("LEFT " + words[1]);
                    break;
                case "first":
                    say("FIRST " + first(MEMBERS.get(words[1]), words[2]));
                    break;
                default:
                    say("QUEUES " + MEMBERS.entrySet().stream().map(each -> each.getKey() + "=" + queues(each.getValue()))
                        .collect(Collectors.joining(" ")));
            }
        }
        for (DefaultMQPushConsumer member : MEMBERS.values()) {
            member.shutdown();
        }
        System.exit(0);
    }

    private static void join(String nameServer, String[] words) throws Exception {
        DefaultMQPushConsumer member = new DefaultMQPushConsumer(words[2]);
        member.setNamesrvAddr(nameServer);
        // Without a wait Java ends before the results of its last calls are counted in its offsets.
        member.setAwaitTerminationMillisWhenShutdown(30_000);
        member.setClientIP("127.0.0.1");
        String filter = words[4].replace('+', ' ');
        if (filter.startsWith("SQL92:")) {
            member.subscribe(words[3], MessageSelector.bySql(filter.substring(6)));
        } else {
            member.subscribe(words[3], filter);
        }
        if (!"-".equals(words[5])) {
            String[] strategy = (words[5] + "=").split("=", -1);
            member.setAllocateMessageQueueStrategy(Allocation.strategy(strategy[0], strategy[1].replace('+', ' ')));
        }
        setModel(member, words[6]);
        String[] where = words[7].split("=");
        member.setConsumeFromWhere(ConsumeFromWhere.valueOf(where[0]));
        if (where.length > 1) {
            member.setConsumeTimestamp(where[1]);
        }
        if (!"-".equals(words[8])) {
            member.setInstanceName(words[8]);
        }
        member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("DONE " + words[1] + " " + new String(message.getBody(), StandardCharsets.UTF_8).trim());
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        member.start();
        MEMBERS.put(words[1], member);
        say("JOINED " + words[1]);
    }

    /** The enum lies in another package in each version. */
    private static void setModel(DefaultMQPushConsumer member, String name) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if ("setMessageModel".equals(method.getName())) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (((Enum<?>) model).name().equals(name)) {
                        method.invoke(member, model);
                    }
                }
            }
        }
    }

    private static String queues(DefaultMQPushConsumer member) {
        return member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> !queue.getTopic().startsWith("%RETRY%"))
            .map(queue -> String.valueOf(queue.getQueueId())).sorted().collect(Collectors.joining(","));
    }

    private static String first(DefaultMQPushConsumer member, String topic) throws Exception {
        MessageQueue queue = new MessageQueue(topic, "broker-a", 0);
        return String.valueOf(member.getDefaultMQPushConsumerImpl().getRebalanceImpl().computePullFromWhere(queue));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
