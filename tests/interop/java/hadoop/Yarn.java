import java.io.File;
import java.io.FileOutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * HDFS and YARN in one JVM: a NameNode, a DataNode, a ResourceManager and a NodeManager, whose containers are processes of
 * the user that this runs as. `Yarn FOLDER` writes what clients need to FOLDER/conf once they run, and ends with its stdin.
 */
public class Yarn {
    private static final String[] CLIENTS = {
        "fs.defaultFS", "dfs.replication", "yarn.resourcemanager.address", "yarn.resourcemanager.scheduler.address",
    };

    public static void main(String[] words) throws Exception {
        File folder = new File(words[0]);
        Configuration conf = new YarnConfiguration();
        conf.set("hdfs.minidfs.basedir", folder + "/hdfs");
        conf.set("dfs.permissions.enabled", "false");
        conf.set("yarn.log.dir", folder + "/logs");
        conf.set("yarn.scheduler.minimum-allocation-mb", "128");
        conf.set("yarn.scheduler.capacity.root.queues", "default");
        conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
        conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
        conf.set("yarn.nodemanager.resource.memory-mb", "4096");
        conf.set("yarn.nodemanager.vmem-check-enabled", "false");
        conf.set("yarn.nodemanager.pmem-check-enabled", "false");
        // A disk that is nearly full makes a NodeManager unhealthy, and there is one.
        conf.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "100");
        conf.set("yarn.nodemanager.delete.debug-delay-sec", "3600");
        MiniDFSCluster hdfs = new MiniDFSCluster.Builder(conf).numDataNodes(1).build();
        hdfs.waitActive();
        FileSystem.setDefaultUri(conf, hdfs.getURI());
        conf.set("dfs.replication", "1");
        MiniYARNCluster yarn = new MiniYARNCluster("yarn", 1, 1, 1);
        yarn.init(conf);
        yarn.start();
        if (!yarn.waitForNodeManagersToConnect(120_000)) {
            throw new IllegalStateException("the NodeManager has not come to the ResourceManager");
        }
        Path made = folder.toPath().resolve("conf");
        Files.createDirectories(made);
        Path draft = made.resolve("draft");
        try (FileOutputStream out = new FileOutputStream(draft.toFile())) {
            Configuration told = new Configuration(false);
            for (String name : CLIENTS) {
                told.set(name, yarn.getConfig().get(name));
            }
            told.writeXml(out);
        }
        Files.copy(draft, made.resolve("core-site.xml"));
        Files.move(draft, made.resolve("yarn-site.xml"), StandardCopyOption.ATOMIC_MOVE);
        while (System.in.read() >= 0) {
            continue;
        }
        System.exit(0);
    }
}
