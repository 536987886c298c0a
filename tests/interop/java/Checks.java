import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListener;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;

/**
 * Checks FILE: what the genuine consumer says of its settings before it starts. Each line of the file: a property of
 * DefaultMQPushConsumer and its value, separated by a tab; "null" is no value, and "other" a listener of no kind. A line with
 * two properties has four parts. One line out for each: FINE, UNKNOWN (no such property in this version), or WRONG and the
 * first line of the message.
 */
public class Checks {
    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Paths.get(args[0]), StandardCharsets.UTF_8)) {
            System.out.println(said(line.split("\t", -1)));
        }
        System.exit(0);
    }

    private static String said(String[] parts) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("group");
        consumer.subscribe("topic", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        for (int at = 0; at < parts.length; at += 2) {
            if (!set(consumer, parts[at], parts[at + 1])) {
                return "UNKNOWN";
            }
        }
        Method check = DefaultMQPushConsumerImpl.class.getDeclaredMethod("checkConfig");
        check.setAccessible(true);
        try {
            check.invoke(consumer.getDefaultMQPushConsumerImpl());
        } catch (InvocationTargetException refused) {
            return "WRONG " + refused.getCause().getMessage().split("\n")[0].replaceFirst("^CODE: \\S+ +DESC: ", "").trim();
        }
        return "FINE";
    }

    private static boolean set(DefaultMQPushConsumer consumer, String name, String value) throws Exception {
        if ("subscription".equals(name)) {  // its setter does not take none
            Field field = DefaultMQPushConsumer.class.getDeclaredField(name);
            field.setAccessible(true);
            field.set(consumer, null);
            return true;
        }
        String setter = "set" + Character.toUpperCase(name.charAt(0)) + name.substring(1);
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                method.invoke(consumer, converted(value, method.getParameterTypes()[0]));
                return true;
            }
        }
        return false;
    }

    private static Object converted(String value, Class<?> type) {
        if ("null".equals(value)) {
            return null;
        }
        if (type == int.class) {
            return Integer.parseInt(value);
        }
        if (type == long.class) {
            return Long.parseLong(value);
        }
        if (type == MessageListener.class) {
            return new MessageListener() { };
        }
        if (type.isEnum()) {
            for (Object constant : type.getEnumConstants()) {
                if (((Enum<?>) constant).name().equals(value)) {
                    return constant;
                }
            }
        }
        return value;
    }
}
