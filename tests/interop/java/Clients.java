import java.io.IOException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Clients NAME_SERVER TOPIC: the kinds of genuine clients, one after the other, and a line for each with what it saw: ORDERLY,
 * BROADCASTING, SQL, BATCH, DELAYED, TRANSACTION, LITE. Then READY; its producer stays until the end of stdin.
 */
public class Clients {
    private static final int MESSAGES = 20;
    private static final int QUEUES = 4;
    private static final int WAIT_S = 150;
    private static final long DELAY_MS = 200;
    private final String nameServer;
    private final String topic;
    private final TransactionMQProducer producer = new TransactionMQProducer("clients_producer");

    private Clients(String nameServer, String topic) {
        this.nameServer = nameServer;
        this.topic = topic;
    }

    public static void main(String[] args) throws Exception {
        Clients clients = new Clients(args[0], args[1]);
        clients.producer.setNamesrvAddr(args[0]);
        clients.producer.setSendMsgTimeout(10_000);
        clients.producer.setDefaultTopicQueueNums(QUEUES);
        clients.producer.setTransactionListener(new Decisions());
        clients.producer.start();
        clients.send();
        clients.orderly();
        clients.broadcasting();
        clients.sql();
        clients.lite();
        clients.batch();
        clients.delayed();
        clients.transaction();
        say("READY");
        while (System.in.read() >= 0) {
            // nothing is asked
        }
        clients.producer.shutdown();
        System.exit(0);
    }

    /** Number N to queue N % QUEUES, with the property a = N, and b on the even ones. */
    private void send() throws Exception {
        for (int number = 0; number < MESSAGES; number++) {
            Message message = message(topic, String.valueOf(number));
            message.setKeys("key-" + number);
            message.putUserProperty("a", String.valueOf(number));
            if (number % 2 == 0) {
                message.putUserProperty("b", "even");
            }
            SendResult sent = producer.send(message, (queues, one, to) -> queues.get((int) to % queues.size()), number);
            say("SENT " + number + " " + sent.getMsgId() + " " + sent.getOffsetMsgId());
        }
    }

    private void orderly() throws Exception {
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        Map<Integer, List<String>> queues = Collections.synchronizedMap(new TreeMap<>());
        DefaultMQPushConsumer consumer = consumer("clients_orderly");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            if (text(message).equals("7") && message.getReconsumeTimes() == 0) {
                context.setSuspendCurrentQueueTimeMillis(20);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            queues.computeIfAbsent(message.getQueueId(), queue -> new ArrayList<>()).add(text(message));
            seen.add(text(message));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        take(seen, MESSAGES);
        consumer.shutdown();
        say("ORDERLY " + queues);
    }

    private void broadcasting() throws Exception {
        List<BlockingQueue<String>> seen = Arrays.asList(new LinkedBlockingQueue<>(), new LinkedBlockingQueue<>());
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (BlockingQueue<String> mine : seen) {
            DefaultMQPushConsumer member = concurrent("clients_broadcasting", mine);
            member.setInstanceName("member-" + members.size());
            broadcasts(member);
            member.subscribe(topic, "*");
            member.start();
            members.add(member);
        }
        say("BROADCASTING " + take(seen.get(0), MESSAGES).size() + " " + take(seen.get(1), MESSAGES).size());
        members.forEach(DefaultMQPushConsumer::shutdown);
    }

    /** The enum lies in another package in each version. */
    private static void broadcasts(DefaultMQPushConsumer member) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if ("setMessageModel".equals(method.getName())) {
                method.invoke(member, method.getParameterTypes()[0].getField("BROADCASTING").get(null));
            }
        }
    }

    private void sql() throws Exception {
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = concurrent("clients_sql", seen);
        consumer.subscribe(topic, MessageSelector.bySql("a BETWEEN 3 AND 11 AND b IS NULL OR a IN ('16')"));
        consumer.start();
        say("SQL " + take(seen, 6));
        consumer.shutdown();
    }

    /** Half of it from a subscription, with its offsets committed; then all of one queue, which is assigned and sought. */
    private void lite() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("clients_lite");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        Collection<String> polled = poll(consumer, MESSAGES);
        consumer.commitSync();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        consumer.shutdown();
        consumer = new DefaultLitePullConsumer("clients_lite");
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        consumer.assign(queues);
        long committed = 0;
        for (MessageQueue queue : queues) {
            committed += consumer.committed(queue);
        }
        MessageQueue first = new TreeSet<>(queues).first();
        consumer.assign(Collections.singletonList(first));
        consumer.seek(first, 1);
        say("LITE " + polled.size() + " " + committed + " " + poll(consumer, MESSAGES / QUEUES - 1)
            + " " + consumer.offsetForTimestamp(first, 1L));
        consumer.shutdown();
    }

    private static Collection<String> poll(DefaultLitePullConsumer consumer, int count) {
        Collection<String> found = new TreeSet<>();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_S);
        while (found.size() < count && System.nanoTime() < end) {
            consumer.poll(500).forEach(message -> found.add(text(message)));
        }
        return found;
    }

    private void batch() throws Exception {
        List<Message> batch = new ArrayList<>();
        for (String body : Arrays.asList("one", "two", "three")) {
            batch.add(message(topic + "-batch", body));
        }
        SendResult sent = producer.send(batch);
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = concurrent("clients_batch", seen);
        consumer.subscribe(topic + "-batch", "*");
        consumer.start();
        say("BATCH " + take(seen, 3) + " " + sent.getMsgId().split(",").length + " ids");
        consumer.shutdown();
    }

    private void delayed() throws Exception {
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = concurrent("clients_delayed", seen);
        consumer.subscribe(topic + "-delayed", "*");
        Message message = message(topic + "-delayed", "late");
        message.setDelayTimeLevel(2);
        long sent = System.currentTimeMillis();
        producer.send(message);
        consumer.start();
        Collection<String> came = take(seen, 1);
        say("DELAYED " + came + " " + (System.currentTimeMillis() - sent >= DELAY_MS ? "in time" : "early"));
        consumer.shutdown();
    }

    private void transaction() throws Exception {
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = concurrent("clients_transaction", seen);
        consumer.subscribe(topic + "-transaction", "*");
        consumer.start();
        for (String body : Arrays.asList("roll back", "ask and roll back", "commit", "ask and commit")) {
            producer.sendMessageInTransaction(message(topic + "-transaction", body), null);
        }
        say("TRANSACTION " + take(seen, 2) + " asked " + take(Decisions.ASKED, 2));
        consumer.shutdown();
    }

    /** What a message is to become is its body. */
    private static class Decisions implements TransactionListener {
        static final BlockingQueue<String> ASKED = new LinkedBlockingQueue<>();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return text(message).startsWith("ask") ? LocalTransactionState.UNKNOW : decided(message);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            if (text(message).startsWith("ask")) { // where a machine is slow, others are asked for too
                ASKED.add(text(message));
            }
            return decided(message);
        }

        private static LocalTransactionState decided(Message message) {
            return text(message).endsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE
                : LocalTransactionState.ROLLBACK_MESSAGE;
        }
    }

    private DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1000);
        // Without a wait Java ends before the results of its last calls are counted in its offsets.
        consumer.setAwaitTerminationMillisWhenShutdown(30_000);
        return consumer;
    }

    private DefaultMQPushConsumer concurrent(String group, BlockingQueue<String> seen) {
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(text(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    /** The different bodies that came, until there are so many. */
    private static Collection<String> take(BlockingQueue<String> seen, int count) throws InterruptedException {
        Collection<String> found = new TreeSet<>();
        while (found.size() < count) {
            String body = seen.poll(WAIT_S, TimeUnit.SECONDS);
            if (body == null) {
                throw new IllegalStateException(found + " came, " + count + " were expected");
            }
            found.add(body);
        }
        String more = seen.poll();
        return more == null || found.contains(more) ? found : Collections.singleton("one too many: " + more);
    }

    private static Message message(String topic, String body) {
        return new Message(topic, "tag", body.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
