import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/**
 * Deduplication as it is usually written for Kafka Streams: the event ids of the last while are kept in a window store,
 * and a record passes when its id is not among them. The store is RocksDB with its changelog on, as by default.
 *
 * <p>It is told what to do by {@code name=value} arguments, prints one line of progress a second, and ends when nothing
 * arrived for a while.
 */
public final class Deduplicate {
    private static final String STORE = "seen";
    private static final LongAdder processed = new LongAdder();
    private static final LongAdder forwarded = new LongAdder();
    private static volatile Throwable failure;

    public static void main(String[] arguments) throws InterruptedException {
        Properties told = new Properties();
        for (String argument : arguments) {
            String[] parts = argument.split("=", 2);
            told.setProperty(parts[0], parts[1]);
        }
        KafkaStreams streams = new KafkaStreams(topology(told), configuration(told));
        streams.setUncaughtExceptionHandler(thrown -> {
            failure = thrown;
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        watch(Integer.parseInt(told.getProperty("idle")));
        streams.close();
        if (failure != null) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static Topology topology(Properties told) {
        Duration window = Duration.ofSeconds(Long.parseLong(told.getProperty("window")));
        Duration retention = Duration.ofSeconds(Long.parseLong(told.getProperty("retention")));
        var store = Stores.windowStoreBuilder(
                Stores.persistentWindowStore(STORE, retention, window, false), Serdes.String(), Serdes.Long());
        return new Topology()
                .addSource("raw", new ByteArrayDeserializer(), new ByteArrayDeserializer(), told.getProperty("input"))
                .addProcessor("first", () -> new FirstOnly(window.toMillis()), "raw")
                .addStateStore(store, "first")
                .addSink(
                        "admitted",
                        told.getProperty("output"),
                        new StringSerializer(),
                        new ByteArraySerializer(),
                        "first");
    }

    private static Properties configuration(Properties told) {
        Properties config = new Properties();
        config.putAll(Map.of(
                StreamsConfig.APPLICATION_ID_CONFIG, told.getProperty("application"),
                StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, told.getProperty("bootstrap"),
                StreamsConfig.STATE_DIR_CONFIG, told.getProperty("state"),
                StreamsConfig.NUM_STREAM_THREADS_CONFIG, told.getProperty("threads"),
                StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, told.getProperty("commit"),
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
                StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest"));
        return config;
    }

    /** Prints a line a second until nothing was processed for so many seconds after the first record. */
    private static void watch(int idleSeconds) throws InterruptedException {
        long before = 0;
        for (int second = 1, idle = 0; idle < idleSeconds && failure == null; second++) {
            Thread.sleep(1000);
            long now = processed.sum();
            System.out.printf("%d s: %d processed, %d forwarded%n", second, now, forwarded.sum());
            idle = now > 0 && now == before ? idle + 1 : 0;
            before = now;
        }
    }

    /** Forwards a record under its event id unless the id was seen within the window around its time. */
    private static final class FirstOnly implements Processor<byte[], byte[], String, byte[]> {
        private final long windowMs;
        private ProcessorContext<String, byte[]> context;
        private WindowStore<String, Long> seen;

        FirstOnly(long windowMs) {
            this.windowMs = windowMs;
        }

        @Override
        public void init(ProcessorContext<String, byte[]> context) {
            this.context = context;
            this.seen = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            String eventId = eventId(record.value());
            long time = record.timestamp();
            if (!wasSeen(eventId, time)) {
                context.forward(record.withKey(eventId));
                seen.put(eventId, time, time);
                forwarded.increment();
            }
            processed.increment();
        }

        private boolean wasSeen(String eventId, long time) {
            try (WindowStoreIterator<Long> found = seen.fetch(eventId, time - windowMs, time + windowMs)) {
                return found.hasNext();
            }
        }
    }

    private static final JsonFactory JSON = new JsonFactory();

    /** Returns {@code metadata.eventId} and reads no further. */
    private static String eventId(byte[] envelope) {
        try (JsonParser parser = JSON.createParser(envelope)) {
            parser.nextToken();
            enter(parser, "metadata");
            enter(parser, "eventId");
            return parser.getText();
        } catch (IOException reason) {
            throw new IllegalArgumentException("an envelope without metadata.eventId", reason);
        }
    }

    /** Moves from the start of an object to the value of one of its fields. */
    private static void enter(JsonParser parser, String field) throws IOException {
        while (parser.nextToken() == JsonToken.FIELD_NAME) {
            boolean found = parser.currentName().equals(field);
            parser.nextToken();
            if (found) {
                return;
            }
            parser.skipChildren();
        }
        throw new IOException("there is no " + field);
    }
}
