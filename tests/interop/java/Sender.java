import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sender NAME_SERVER TOPIC FROM TO: a genuine producer of the numbers FROM to TO - 1. A third goes out as it is, a third
 * is padded so that it is compressed, a third goes out in batches of ten.
 */
public class Sender {
    private static final int PADDED = 8000;
    private static final int BATCH = 10;

    public static void main(String[] args) {
        try {
            send(args);
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1); // the producer's threads would go on for ever
        }
        System.exit(0);
    }

    private static void send(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("java_sender");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(60_000); // three seconds are few on a busy machine
        producer.start();
        int from = Integer.parseInt(args[2]);
        int to = Integer.parseInt(args[3]);
        List<Message> batch = new ArrayList<>();
        for (int number = from; number < to; number++) {
            String body = String.valueOf(number);
            if (number % 3 == 1) {
                body = String.format("%-" + PADDED + "s", body);
            }
            Message message = new Message(args[1], "tag" + number % 3, "n" + number, body.getBytes(StandardCharsets.UTF_8));
            if (number % 3 != 2) {
                check(producer.send(message));
                continue;
            }
            batch.add(message);
            if (batch.size() == BATCH) {
                check(producer.send(batch));
                batch.clear();
            }
        }
        if (!batch.isEmpty()) {
            check(producer.send(batch));
        }
        producer.shutdown();
        System.out.println("SENT " + (to - from));
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }
}
