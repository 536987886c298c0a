import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Tools NAME_SERVER: each line on stdin is one command of mqadmin, its words parted by tabs; says END in a line of its own after its output. */
public class Tools {
    public static void main(String[] args) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            MQAdminStartup.main0((line + "\t-n\t" + args[0]).split("\t"), null);
            System.err.flush();
            System.out.println();
            System.out.println("END");
            System.out.flush();
        }
        System.exit(0);
    }
}
