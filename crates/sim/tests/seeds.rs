//! Seeds that once failed, each with the fault that it showed, and a fixed set of others. A run is short here;
//! `cargo xtask sim` runs many long ones in a faster build.

use crore_sim::plan::{CENTRIFUGO_FROM, TCP_FROM};
use crore_sim::{Coverage, run, run_seed};

/// The fault that each of these seeds finds in a broker without the fix. A change in the meaning of seeds (the plan, the
/// steps, the random numbers) needs new ones: undo the fix and run `cargo xtask sim`.
const FOUND: &[(&str, u64, usize)] = &[
    (
        "a topic whose log expired in the tick that forgot it was removed twice",
        0,
        400,
    ),
    (
        "a long-poll on several topics lost what came while another home had not answered",
        397,
        400,
    ),
    (
        "the first of two gaps of a set moved both positions, and the second was never told",
        799,
        1200,
    ),
    (
        "publishers of single messages did not wait for a shard that was behind with its own",
        1736,
        1200,
    ),
    (
        "publishers who came anew while a home owed credit were read and heard",
        1,
        1200,
    ),
    (
        "a poll on several topics was not told that one of them was deleted while another had not answered",
        1_795_262_353_980,
        1200,
    ),
    (
        "an MQTT message without QoS overtook one that its session had to be sent again",
        79_002_235,
        1200,
    ),
    (
        "an MQTT client with one subscription that read on from the log lost its publishes that waited",
        3_010_919,
        1200,
    ),
    (
        "a retained message that waited for room came behind a newer one of QoS 0",
        5_044_670,
        1200,
    ),
    (
        "an exact MQTT subscription lost what it had left to a filter that fell behind with an earlier message of the run",
        206,
        1200,
    ),
    (
        "a session by filter that left in the midst of a run got again what it had been visited for",
        9_049_319,
        1200,
    ),
    (
        "a session that ended before a home had heard what it needed kept left that need behind",
        1_900_000_030_196,
        1200,
    ),
    (
        "a session that stood before a deletion began anew too late: what was published behind the deletion was lost",
        1_795_286_534_044,
        1200,
    ),
    (
        "a session's subscription that began anew behind a deletion counted for none that reads on, and a filter brought its messages too",
        479_704,
        1200,
    ),
    (
        "the judge held to one order what two subscriptions had brought in a session that had ended since",
        996_099,
        1200,
    ),
    (
        "the judge asked followers for what they see of a client whose session has a subscription without room: it comes and goes",
        20_326_501,
        1200,
    ),
    (
        "who began live by filter was not told what was lost while another home had not answered",
        77_040_039,
        1200,
    ),
    (
        "the judge forgot the batch that may begin within the credit when it bounded what a shard is behind",
        1_795_296_751_043,
        1200,
    ),
    (
        "the judge asked how many subscribe while a publisher sent again and long-polls came and went by it",
        90_013_390,
        1200,
    ),
    (
        "who read on by filter passed over a message that was too old and not dropped yet",
        91_014_189,
        1200,
    ),
    (
        "a message came by a subscription whose topic had got the row of its own, and twice where a topic was deleted",
        1_795_353_860_072,
        1200,
    ),
    (
        "a session's end waited for the next second although the turn had nothing else to do",
        99_012_176,
        1200,
    ),
    (
        "the judge took a stretch for whole whose connection ended while it compared the followers",
        1_795_351_929_967,
        1200,
    ),
    (
        "a page for a filter came behind a page of a topic that the home had read later",
        1_795_371_471_486,
        1200,
    ),
    (
        "a refused subscription counted on the log of a topic that another client had created meanwhile",
        1_795_377_587_720,
        1200,
    ),
    (
        "a poll by filter lost a message that it held and then left for an older one, whose partition had left a later one before",
        1_500_023_740,
        1200,
    ),
    (
        "the same, where a poll's filter overlaps two partitions",
        1_500_079_689,
        1200,
    ),
    (
        "a position by filter went back where messages of two homes were under way",
        900_001_138,
        1200,
    ),
    (
        "a message got the offset of another that stood in no log and waited for the end of a turn",
        2902,
        1200,
    ),
    (
        "the judge knew one reason only of a socket that closes with a gap, and one by filter has no room for it",
        11_080,
        1200,
    ),
    (
        "the judge took the gap of a poll that begins anew by filter behind a crash for one of the only topic that it knows",
        600_268,
        1200,
    ),
    ("the same", 600_563, 1200),
    ("the same", 601_473, 1200),
    ("the same", 604_813, 1200),
    (
        "the judge took a message whose outcome is not known for one that stands in no log, and missed the one that it superseded",
        138_408_150_670_894,
        1200,
    ),
    (
        "the judge held a session that may be a new one to what an earlier one had released",
        6175,
        1200,
    ),
    (
        "news of interest at the end of a delivery that was parked in order came before earlier news that still waited",
        2_306_073_386_898_366_829,
        1200,
    ),
    (
        "a steward whose death only the first partition had was never found dead by nodes that began behind it",
        2_306_073_386_898_368_699,
        1200,
    ),
    (
        "a home made room while it was asked for a checkpoint, and the sockets of the clients that it ended stayed open",
        2_305_843_009_213_710_578,
        1200,
    ),
    (
        "a reader by filter went on at a node that had dropped less, behind a loss that it had not been told",
        2_305_843_009_213_707_127,
        1200,
    ),
    (
        "a restore that dropped the last message of a topic counted the newer ones, which had been removed without a loss, as lost",
        2_305_936_075_730_151_211,
        1200,
    ),
    (
        "a will had the token of its session, so that its end released the QoS 2 messages of the session: they were published twice",
        1_152_921_504_606_847_024,
        1200,
    ),
    (
        "a topic that lost its messages after a recovery was forgotten, and its loss was not",
        1_152_921_504_606_847_248,
        1200,
    ),
    (
        "a message that had waited for its record was sent again before those that had been sent first",
        1_152_921_504_606_847_729,
        1200,
    ),
    (
        "the record of an expired session's end stood behind the next claim to it: the session that the claim began was lost in a crash",
        1_152_921_504_606_848_775,
        1200,
    ),
    (
        "the key of a will stayed whose message the log took late",
        1_152_921_504_606_847_096,
        1200,
    ),
    (
        "a claim that was recorded again took the session from the newer connection",
        1_152_921_504_606_847_655,
        1200,
    ),
    (
        "a QoS 2 message came again after a crash by a subscription that had a lower QoS by then",
        1_152_921_504_606_853_092,
        1200,
    ),
    (
        "a node that wrote its own death into a partition took its notes there for in flight for good: as steward it wrote no mark, and keys never expired",
        2_305_913_305_682_141_033,
        1200,
    ),
    (
        "a subscriber by filter was not told of a loss that the server before a crash would have told it later",
        1_152_921_504_606_852_932,
        1200,
    ),
    (
        "a copy of a QoS 2 message that the former node had appended came into the log after the release, and was another message",
        576_460_752_303_426_559,
        1200,
    ),
    (
        "the key of a QoS 2 message stayed, since only some nodes knew that its session had ended",
        576_460_752_303_423_520,
        1200,
    ),
    (
        "a steward that was paused for long published a will once more before it read its own death, behind the release of the key",
        576_460_752_303_428_144,
        1200,
    ),
    (
        "a will that waited in the mail between two shards for a hundred seconds was published behind the release of its key",
        576_657_255_888_333_814,
        1200,
    ),
    (
        "nodes that were cut off for two minutes forgot the token of a will without releasing its key",
        864_691_128_457_135_590,
        5000,
    ),
    (
        "a node that was paused read the messages of a topic before the record of the session that needs them, and kept only the last one",
        864_691_128_457_138_639,
        5000,
    ),
    (
        "the same with other partitions",
        864_691_128_457_138_893,
        5000,
    ),
    (
        "the same, after a node had been cut off",
        864_691_128_455_141_926,
        1200,
    ),
    (
        "a simulator for which no CONNECT of a cluster took effect after the end of its connection",
        864_691_128_455_241_811,
        1200,
    ),
    (
        "a simulator that gave no turn to a shard whose page waited for another shard, while that one had work without end",
        2_305_995_293_557_126_255,
        1_200,
    ),
];

/// Seeds of the fixed set, and their steps.
const SEEDS: u64 = 150;
const STEPS: usize = 400;
/// Seeds with clients of Centrifugo's protocol.
const CENTRIFUGO_SEEDS: u64 = 40;
/// Seeds with connections over the product's own TCP.
const TCP_SEEDS: u64 = 40;

fn must_pass(name: &str, seed: u64, steps: usize) -> Coverage {
    match run_seed(seed, steps) {
        Ok(coverage) => coverage,
        Err(failure) => panic!("seed {seed}, {steps} steps ({name}): {}", failure.what),
    }
}

#[test]
fn seeds_that_found_something_pass() {
    run::catch_panics();
    for (name, seed, steps) in FOUND {
        must_pass(name, *seed, *steps);
    }
}

#[test]
fn fixed_set_contains_and_overlaps_everything() {
    run::catch_panics();
    let mut coverage = Coverage::default();
    for seed in 0..SEEDS {
        coverage += must_pass("fixed set", seed, STEPS);
    }
    assert_eq!(
        coverage.missing(),
        Vec::<&str>::new(),
        "kinds that were not met"
    );
}

#[test]
fn clients_of_centrifugo_recover_or_are_told_of_a_loss() {
    run::catch_panics();
    let mut coverage = Coverage::default();
    for seed in 0..CENTRIFUGO_SEEDS {
        coverage += must_pass("Centrifugo's clients", CENTRIFUGO_FROM + seed, STEPS);
    }
    assert!(coverage.recovered > 0 && coverage.unrecovered > 0);
}

#[test]
fn connections_over_our_tcp_keep_every_promise() {
    run::catch_panics();
    let mut coverage = Coverage::default();
    for seed in 0..TCP_SEEDS {
        coverage += must_pass("over TCP", TCP_FROM + seed, STEPS);
    }
    assert!(coverage.tcp_retransmissions > 0 && coverage.tcp_failures > 0);
}

#[test]
fn seed_determines_the_run() {
    let trace = |seed| {
        let plan = crore_sim::Plan::new(seed);
        let steps = plan.steps(seed, STEPS);
        run::trace(&plan, seed, &steps)
    };
    for seed in (1..6).chain(TCP_FROM..TCP_FROM + 3) {
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
}
