import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Allocation FILE: what the genuine strategies give. Each line of the file, its parts separated by tabs: strategy, argument,
 * own client id, queues (topic@broker:id, separated by blanks), client ids (separated by blanks). One line out for each:
 * the own queues. A room is what stands before the first dash of a broker's name or client id.
 */
public class Allocation {
    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Paths.get(args[0]), StandardCharsets.UTF_8)) {
            String[] parts = line.split("\t", -1);
            List<MessageQueue> queues = queues(parts[3]);
            List<String> members = new ArrayList<>(Arrays.asList(parts[4].split(" ")));
            Collections.sort(queues);
            Collections.sort(members);
            System.out.println("MINE " + strategy(parts[0], parts[1]).allocate("group", parts[2], queues, members).stream()
                .map(mq -> mq.getTopic() + "@" + mq.getBrokerName() + ":" + mq.getQueueId())
                .collect(Collectors.joining(" ")));
        }
        System.exit(0);
    }

    static AllocateMessageQueueStrategy strategy(String name, String argument) {
        if (name.startsWith("MACHINE_ROOM_NEARBY-")) {
            return new AllocateMachineRoomNearby(strategy(name.substring("MACHINE_ROOM_NEARBY-".length()), argument),
                new AllocateMachineRoomNearby.MachineRoomResolver() {
                    @Override
                    public String brokerDeployIn(MessageQueue queue) {
                        return queue.getBrokerName().split("-")[0];
                    }

                    @Override
                    public String consumerDeployIn(String clientId) {
                        return clientId.split("-")[0];
                    }
                });
        }
        switch (name) {
            case "AVG":
                return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash(argument.isEmpty() ? 10 : Integer.parseInt(argument));
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                byRoom.setConsumeridcs(new HashSet<>(Arrays.asList(argument.split(" "))));
                return byRoom;
            case "CONFIG":
                AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
                byConfig.setMessageQueueList(queues(argument));
                return byConfig;
            case "BACKWARDS":
                return new Backwards();
            default:
                throw new IllegalArgumentException(name);
        }
    }

    /** A user's own: by circle, from the end of the list. */
    private static class Backwards implements AllocateMessageQueueStrategy {
        @Override
        public List<MessageQueue> allocate(String group, String mine, List<MessageQueue> all, List<String> members) {
            List<MessageQueue> found = new ArrayList<>();
            for (int at = 0; at < all.size(); at++) {
                if (at % members.size() == members.indexOf(mine)) {
                    found.add(all.get(all.size() - 1 - at));
                }
            }
            return found;
        }

        @Override
        public String getName() {
            return "BACKWARDS";
        }
    }

    private static List<MessageQueue> queues(String text) {
        List<MessageQueue> found = new ArrayList<>();
        for (String part : text.split(" ")) {
            int at = part.indexOf('@');
            int colon = part.lastIndexOf(':');
            found.add(new MessageQueue(part.substring(0, at), part.substring(at + 1, colon),
                Integer.parseInt(part.substring(colon + 1))));
        }
        return found;
    }
}
