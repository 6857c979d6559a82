//! Tests of the log on a disk that loses power at any moment. Each acknowledged batch must come back once and in order, and nothing may
//! come back that was not written. The tests must also detect each fault that is planted in the disk.

use crore_disk::simulated::{Disk, Fault};
use crore_disk::{CommitError, DamageKind, Identity, Log, Options, Reader, ScanEvent, scan};
use crore_rng::Rng;

const IDENTITY: Identity = Identity { log: 7, seed: 8 };
/// Small segments, so that a run has many.
const OPTIONS: Options = Options {
    segment_bytes: 4096 + 6100,
    bytes_max: u64::MAX,
    first_segment: 1,
    checkpoint_group: 0,
};

/// Bytes of the file of the mark, which records where the log has ended.
const MARK_BYTES: u64 = 8192;

/// A batch: its number, and bytes of random length that follow from the number.
fn batch(number: u32, rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(20) {
        0 => rng.below(9000),
        _ => rng.below(700),
    };
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(4 + len, number as u8);
    bytes
}

fn number_of(batch: &[u8]) -> u32 {
    let (number, rest) = batch.split_first_chunk().expect("a batch has a number");
    let number = u32::from_le_bytes(*number);
    assert!(rest.iter().all(|byte| *byte == number as u8), "{number}");
    number
}

/// Collects the numbers of the batches in a log, and counts its losses.
fn record_events(found: &mut Vec<u32>, losses: &mut usize) -> impl FnMut(ScanEvent<'_>) {
    |it| match it {
        ScanEvent::Batch(_, batch) => found.push(number_of(batch)),
        ScanEvent::Damage(_) => *losses += 1,
    }
}

/// Checks the recovered batches: all acknowledged ones must be there, and of the unacknowledged group all or none.
fn check_recovered(
    acknowledged: &[(u32, u64)],
    unacknowledged: &[u32],
    found: &[(u32, u64)],
) -> Result<(), String> {
    let acknowledged_numbers = acknowledged.iter().map(|(number, _)| *number);
    let complete_numbers = acknowledged_numbers
        .clone()
        .chain(unacknowledged.iter().copied());
    let numbers = found.iter().map(|(number, _)| *number);
    match numbers.clone().eq(acknowledged_numbers) || numbers.eq(complete_numbers) {
        true => Ok(()),
        false => Err(format!(
            "{acknowledged:?} and perhaps {unacknowledged:?} became {found:?}"
        )),
    }
}

/// Simulates a disk whose power fails and returns several times. With `forgets_first_segment`, no start knows which segment of the log is the first.
fn run_power_cuts(seed: u64, fault: Fault, forgets_first_segment: bool) -> Result<(), String> {
    let disk = Disk::new(seed, fault);
    let mut rng = Rng::new(seed ^ 0xc0ffee);
    // The batches that must be in the log, with their segments: the acknowledged ones, and those that came back.
    let mut acknowledged: Vec<(u32, u64)> = Vec::new();
    // The batches of the group that was being committed when the power failed.
    let mut unacknowledged: Vec<u32> = Vec::new();
    let mut next = 0;
    let mut options = OPTIONS;
    for _ in 0..6 {
        let (mut found, mut losses) = (Vec::new(), 0);
        disk.cut_power_after(if rng.chance(10) {
            rng.below(20)
        } else {
            usize::MAX
        });
        if forgets_first_segment {
            options = OPTIONS;
        }
        let opened = Log::open(disk.clone(), options, IDENTITY, |it| match it {
            ScanEvent::Batch(place, batch) => found.push((number_of(batch), place.segment)),
            ScanEvent::Damage(_) => losses += 1,
        });
        let Ok((mut log, recovered)) = opened else {
            // The power failed while the log was read.
            disk.restore_power();
            continue;
        };
        if losses > 0 || !recovered.damages.is_empty() {
            return Err(format!("a loss is told: {:?}", recovered.damages));
        }
        check_recovered(&acknowledged, &unacknowledged, &found)?;
        if log.usage().bytes != disk.bytes() {
            return Err(format!("{:?} of {}", log.usage(), disk.bytes()));
        }
        acknowledged = found;
        unacknowledged.clear();
        disk.cut_power_after(rng.below(160));
        for _ in 0..60 {
            let group: Vec<u32> = (0..=rng.below(5) as u32).map(|n| next + n).collect();
            next += group.len() as u32;
            let bytes: Vec<Vec<u8>> = group.iter().map(|n| batch(*n, &mut rng)).collect();
            match log.commit(bytes.iter().map(Vec::as_slice)) {
                Ok(()) => {
                    let segment = log.end().segment;
                    acknowledged.extend(group.iter().map(|number| (*number, segment)));
                }
                Err(CommitError::Full) => {}
                Err(CommitError::Failed(_)) => {
                    unacknowledged = group;
                    break;
                }
            }
            if rng.chance(3) {
                // Pretends that a checkpoint contains the batches of these segments.
                options.first_segment += rng.below(4) as u64;
                options.first_segment = options.first_segment.min(log.usage().last_sealed + 1);
                acknowledged.retain(|(_, segment)| *segment >= options.first_segment);
                let _ = log.remove_before(options.first_segment);
            }
        }
        drop(log);
        match rng.chance(40) {
            true => disk.restart_process(),
            false => disk.restore_power(),
        }
    }
    Ok(())
}

#[test]
fn answered_batches_survive_any_kill_and_any_power_cut() {
    for seed in 0..1500 {
        if let Err(why) = run_power_cuts(seed, Fault::None, false) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn a_missing_sync_is_found() {
    for fault in [Fault::FileNotSynced, Fault::NamesNotSynced] {
        let found = (0..200).find(|seed| run_power_cuts(*seed, fault, false).is_err());
        assert!(found.is_some(), "{fault:?} was not found");
    }
}

/// If the number of the first segment is forgotten, the log again contains a removed segment, or reports it as missing.
#[test]
fn a_forgotten_first_segment_is_found() {
    let found = (0..200).find(|seed| run_power_cuts(*seed, Fault::None, true).is_err());
    assert!(found.is_some());
}

#[test]
fn removed_segments_give_room_to_a_full_log() {
    let disk = log_with_groups(60);
    let options = Options {
        bytes_max: 5 * OPTIONS.segment_bytes,
        ..OPTIONS
    };
    let opened = Log::open(disk.clone(), options, IDENTITY, |_| ());
    let (mut log, _) = opened.expect("a log");
    let batch = [0; 300];
    while log.commit([&batch[..]]).is_ok() {}
    assert_eq!((log.end().segment, log.has_spares()), (5, false));
    assert!(matches!(log.make_spares(), Ok(false)));
    log.remove_before(3).expect("they are there");
    let usage = log.usage();
    assert_eq!(usage.bytes, 3 * OPTIONS.segment_bytes);
    assert_eq!(
        (usage.last_sealed, usage.sealed_bytes),
        (4, 2 * OPTIONS.segment_bytes)
    );
    assert!(matches!(log.make_spares(), Ok(true)));
    // The size of the caller's other files counts towards the limit.
    log.remove_before(4).expect("it is there");
    log.set_other_bytes(OPTIONS.segment_bytes + 1);
    log.commit([&batch[..]]).expect("there is room");
    assert!(matches!(log.make_spares(), Ok(false)));
    // The open segment is not removed.
    log.remove_before(u64::MAX).expect("they are there");
    log.commit([&batch[..]]).expect("there is room");
    let first_segment = log.end().segment;
    drop(log);
    let (mut found, mut losses) = (Vec::new(), 0);
    let options = Options {
        first_segment,
        ..OPTIONS
    };
    let opened = Log::open(
        disk,
        options,
        IDENTITY,
        record_events(&mut found, &mut losses),
    );
    assert!(opened.is_ok());
    assert_eq!((found.len(), losses), (2, 0));
}

/// Segments before the first one may still exist, if their removal was interrupted. If the log should begin with such segments and they are missing, it
/// reports them.
#[test]
fn a_log_begins_with_its_first_segment() {
    for first_segment in 1..=4 {
        let disk = log_with_groups(60);
        let options = Options {
            first_segment,
            ..OPTIONS
        };
        let (mut found, mut losses) = (Vec::new(), 0);
        let opened = Log::open(
            disk.clone(),
            options,
            IDENTITY,
            record_events(&mut found, &mut losses),
        );
        let (log, _) = opened.expect("a log");
        let left = 60 - 18 * (first_segment as usize - 1);
        assert_eq!((found.len(), losses), (left, 0));
        // The segments before the first one were removed.
        let spares = 2 * OPTIONS.segment_bytes;
        let segments = (5 - first_segment) * OPTIONS.segment_bytes;
        assert_eq!(log.usage().bytes, segments + spares);
        assert_eq!(disk.bytes(), segments + spares);
        drop(log);
        let (mut found, mut losses) = (Vec::new(), 0);
        let earlier = Options {
            first_segment: 1,
            ..OPTIONS
        };
        let opened = Log::open(
            disk,
            earlier,
            IDENTITY,
            record_events(&mut found, &mut losses),
        );
        assert!(opened.is_ok());
        let missing = usize::from(first_segment > 1);
        assert_eq!((found.len(), losses), (left, missing));
    }
}

#[test]
fn log_without_segments_begins_with_its_first_valid_segment() {
    let disk = Disk::new(1, Fault::None);
    let options = Options {
        first_segment: 7,
        ..OPTIONS
    };
    let opened = Log::open(disk.clone(), options, IDENTITY, |_| ());
    let (mut log, found) = opened.expect("an empty disk");
    assert!(found.damages.is_empty());
    log.commit([&[0; 4][..]]).expect("there is room");
    assert_eq!(log.end().segment, 7);
    drop(log);
    let opened = Log::open(disk, options, IDENTITY, |_| ());
    let (_, found) = opened.expect("a log");
    assert_eq!((found.batches, found.damages.len()), (1, 0));
}

#[test]
fn sealed_segments_are_read_while_the_log_goes_on() {
    let disk = log_with_groups(60);
    let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, |_| ());
    let (mut log, _) = opened.expect("a log");
    // The fourth segment has six groups. The scan does not read them.
    log.commit([&[9; 300][..]]).expect("there is room");
    let mut places = Vec::new();
    let found = scan(&disk, (Some(2), Some(3)), |it| match it {
        ScanEvent::Batch(place, batch) => places.push((place, batch.to_vec())),
        ScanEvent::Damage(damage) => panic!("{damage:?}"),
    });
    assert_eq!(found.expect("a log").segments, 2);
    let numbers = places.iter().map(|(_, batch)| number_of(batch));
    assert!(numbers.eq(18..54));
    let mut reader = Reader::new(disk.clone());
    for (place, batch) in places.iter().rev().chain(&places) {
        let read = reader
            .read_batch(place.segment_and_offset())
            .expect("a batch");
        assert_eq!(read, batch);
    }
    assert!(reader.read_batch((3, 1 << 40)).is_err());
    // The last group of segment 3 is damaged, which the header of segment 4 reveals.
    assert!(disk.damage("segment-0000000003.log", 4096 + 17 * 336 + 100));
    let found = scan(&disk, (Some(2), Some(3)), |_| ()).expect("a log");
    assert_eq!(found.damages.len(), 1);
}

/// A log of this many groups of one batch each.
fn log_with_groups(groups: u32) -> Disk {
    log_with_batches(0..groups)
}

fn log_with_batches(numbers: impl IntoIterator<Item = u32>) -> Disk {
    let disk = Disk::new(1, Fault::None);
    let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, |_| ());
    let (mut log, _) = opened.expect("an empty disk");
    for number in numbers {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.resize(300, number as u8);
        log.commit([&bytes[..]]).expect("there is room");
    }
    disk
}

#[test]
fn damage_is_told_in_its_place_and_the_rest_comes_back() {
    // 18 groups of 336 bytes fit in a segment.
    for segment in 1..=3 {
        for at in (0..64).chain((4096..4096 + 18 * 336).step_by(7)) {
            let disk = log_with_groups(60);
            assert!(disk.damage(&format!("segment-{segment:010}.log"), at));
            let (mut found, mut losses) = (Vec::new(), 0);
            let on_event = record_events(&mut found, &mut losses);
            let opened = Log::open(disk, OPTIONS, IDENTITY, on_event);
            let (_, recovered) = opened.expect("damage is no reason to refuse");
            let lost = (0..60).filter(|n| !found.contains(n)).count();
            assert!(found.is_sorted(), "in order");
            let expected = if at < 64 { (18, 1) } else { (1, 1) };
            assert_eq!((lost, losses), expected, "byte {at} of segment {segment}");
            let reported_batches: Vec<_> = recovered.damages.iter().map(|it| it.batches).collect();
            assert_eq!(
                reported_batches,
                [Some(lost as u64)],
                "what is lost is counted"
            );
        }
    }
}

#[test]
fn log_continues_after_damage_and_reports_it_again() {
    let disk = log_with_groups(60);
    assert!(disk.damage("segment-0000000002.log", 5000));
    for round in 0..3 {
        let (mut found, mut losses) = (Vec::new(), 0);
        let on_event = record_events(&mut found, &mut losses);
        let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, on_event);
        let (mut log, _) = opened.expect("damage is no reason to refuse");
        assert_eq!((found.len(), losses), (59 + round, 1));
        log.commit([&[0; 4][..]]).expect("there is room");
    }
}

/// A segment from another history of the same log (for example from a backup) is reported.
#[test]
fn segment_of_another_history_is_reported() {
    let (disk, other) = (
        log_with_groups(60),
        log_with_batches((0..17).chain(1000..1043)),
    );
    for segment in 2..=3 {
        disk.copy_from(&other, &format!("segment-{segment:010}.log"));
        let (mut found, mut losses) = (Vec::new(), 0);
        let on_event = record_events(&mut found, &mut losses);
        assert!(Log::open(disk.clone(), OPTIONS, IDENTITY, on_event).is_ok());
        // One loss where the other history begins, and one where it ends.
        assert_eq!((found.len(), losses), (60, 2));
    }
}

#[test]
fn missing_or_empty_segment_is_reported() {
    for (number, lost) in [(1, 18), (2, 18), (3, 18)] {
        let name = format!("segment-{number:010}.log");
        let disk = log_with_groups(60);
        disk.truncate(&name, 0);
        let (mut found, mut losses) = (Vec::new(), 0);
        let opened = Log::open(
            disk,
            OPTIONS,
            IDENTITY,
            record_events(&mut found, &mut losses),
        );
        assert!(opened.is_ok());
        assert_eq!((found.len(), losses), (60 - lost, 1));
        let disk = log_with_groups(60);
        crore_disk::Storage::remove(&disk, &name).expect("it is there");
        let (mut found, mut losses) = (Vec::new(), 0);
        let opened = Log::open(
            disk,
            OPTIONS,
            IDENTITY,
            record_events(&mut found, &mut losses),
        );
        assert!(opened.is_ok());
        assert_eq!((found.len(), losses), (60 - lost, 1));
    }
}

/// The numbers of the recovered batches, and the places where batches are lost.
fn recover(disk: &Disk) -> (Vec<u32>, Vec<(DamageKind, u64, u64)>) {
    let (mut found, mut losses) = (Vec::new(), 0);
    let opened = Log::open(
        disk.clone(),
        OPTIONS,
        IDENTITY,
        record_events(&mut found, &mut losses),
    );
    let (_, recovered) = opened.expect("a lost end is no reason to refuse");
    let damages = recovered.damages.iter();
    let places = damages.map(|it| (it.kind, it.segment, it.offset)).collect();
    assert_eq!(losses, recovered.damages.len());
    (found, places)
}

/// 60 groups fill three segments of 18 groups each, and 6 groups are in a fourth one.
#[test]
fn lost_newest_segments_are_told() {
    for left in (0..4).rev() {
        let disk = log_with_groups(60);
        for number in left + 1..=4 {
            let name = format!("segment-{number:010}.log");
            crore_disk::Storage::remove(&disk, &name).expect("it is there");
        }
        let (found, losses) = recover(&disk);
        assert!(found.iter().copied().eq(0..18 * left));
        let offset = if left == 0 { 0 } else { 4096 + 18 * 336 };
        let lost = (DamageKind::End, u64::from(left), offset);
        assert_eq!(losses, [lost], "{left} are left");
        // A second start reports the same loss, because nothing was written since.
        assert_eq!(recover(&disk).1, [lost], "it is told until the log goes on");
    }
}

#[test]
fn truncated_newest_segment_is_reported_at_every_length() {
    for bytes in (0..4096 + 6100).step_by(251) {
        let disk = log_with_groups(60);
        disk.truncate("segment-0000000004.log", bytes);
        let whole_groups = (bytes.saturating_sub(4096) / 336).min(6) as u32;
        let (found, losses) = recover(&disk);
        assert!(
            found.iter().copied().eq(0..54 + whole_groups),
            "{bytes} bytes"
        );
        let lost = match bytes < 64 {
            true => (DamageKind::Header, 4, 0),
            false => (DamageKind::End, 4, 4096 + u64::from(whole_groups) * 336),
        };
        assert_eq!(losses, [lost], "{bytes} bytes");
    }
}

/// After a power failure the file system may be in an earlier state. The log must notice that groups from before the last start are missing.
#[test]
fn groups_of_before_the_last_start_are_missed() {
    let disk = log_with_groups(60);
    drop(recover(&disk));
    for at in 0..32 {
        assert!(disk.damage("segment-0000000004.log", 4096 + 5 * 336 + at));
    }
    let (found, losses) = recover(&disk);
    assert!(found.into_iter().eq(0..59));
    assert_eq!(losses, [(DamageKind::End, 4, 4096 + 5 * 336)]);
}

/// A start that finds a loss may be killed before a checkpoint contains the rest of the log. So the next start must report the loss again.
#[test]
fn lost_end_is_reported_until_a_checkpoint_has_the_rest() {
    for is_cut in [false, true] {
        let disk = log_with_groups(60);
        let newest = "segment-0000000004.log";
        match is_cut {
            true => disk.truncate(newest, 4096),
            false => crore_disk::Storage::remove(&disk, newest).expect("it is there"),
        }
        let mut expected: Vec<u32> = (0..54).collect();
        for number in 60..63u32 {
            let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, |_| ());
            let (mut log, found) = opened.expect("a log");
            assert_eq!(found.damages.len(), 1, "before {number}");
            let before = log.usage().last_sealed;
            log.begin_segment().expect("there is room");
            assert_eq!(log.end().segment, before + 1, "never behind a lost end");
            log.commit([&number.to_le_bytes()[..]])
                .expect("there is room");
            expected.push(number);
        }
        let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, |_| ());
        let (mut log, _) = opened.expect("a log");
        log.remove_before(1).expect("nothing to remove");
        drop(log);
        assert_eq!(recover(&disk), (expected, vec![]));
    }
}

/// After a lost end no segment is open until the next commit, which a full disk may delay for long.
#[test]
fn a_log_whose_segments_are_all_kept_elsewhere_has_lost_nothing() {
    for is_removed in [false, true] {
        let disk = log_with_groups(60);
        disk.truncate("segment-0000000004.log", 4096);
        let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, |_| ());
        let (mut log, _) = opened.expect("a log");
        let end = log.end();
        assert_eq!((end.segment, end.group), (5, 54));
        // The process may be killed after the checkpoint and before the removal. At that time the mark no longer records the loss.
        log.remove_before(if is_removed { end.segment } else { 1 })
            .expect("it is removed");
        drop(log);
        let options = Options {
            first_segment: end.segment,
            checkpoint_group: end.group,
            ..OPTIONS
        };
        for number in 0..3u32 {
            let found = scan(&disk, (Some(end.segment), None), |_| ()).expect("a log");
            assert_eq!((found.damages.len(), found.batches), (0, number.into()));
            let opened = Log::open(disk.clone(), options, IDENTITY, |_| ());
            let (mut log, found) = opened.expect("a log");
            assert_eq!((found.damages.len(), found.batches), (0, number.into()));
            assert_eq!(log.end().group, end.group + u64::from(number));
            assert_eq!(log.end().segment, end.segment);
            log.commit([&number.to_le_bytes()[..]])
                .expect("there is room");
        }
        // The loss of later segments is still noticed.
        crore_disk::Storage::remove(&disk, "segment-0000000005.log").expect("it is there");
        let opened = Log::open(disk, options, IDENTITY, |_| ());
        let (_, found) = opened.expect("a log");
        let [damage] = found.damages[..] else {
            panic!("a lost end: {found:?}");
        };
        assert_eq!(damage.kind, DamageKind::End);
    }
}

/// A mark of another log, or a damaged one, proves nothing, so no loss is reported because of it.
#[test]
fn mark_of_another_log_proves_nothing() {
    let (disk, other) = (log_with_groups(17), Disk::new(1, Fault::None));
    let opened = Log::open(other.clone(), OPTIONS, Identity { log: 9, seed: 8 }, |_| ());
    let (mut log, _) = opened.expect("an empty disk");
    while log.end().segment < 3 {
        log.commit([&[0; 300][..]]).expect("there is room");
    }
    disk.copy_from(&other, "end");
    assert_eq!(recover(&disk).1, []);
    let disk = log_with_groups(60);
    crore_disk::Storage::remove(&disk, "segment-0000000004.log").expect("it is there");
    for place in [0, 4096] {
        assert!(disk.damage("end", place));
    }
    assert_eq!(recover(&disk).1, []);
}

#[test]
fn full_disk_loses_nothing_and_the_log_continues_with_free_space() {
    let disk = Disk::new(1, Fault::None);
    disk.set_capacity((4 * OPTIONS.segment_bytes + MARK_BYTES) as usize);
    let opened = Log::open(disk.clone(), OPTIONS, IDENTITY, |_| ());
    let (mut log, _) = opened.expect("an empty disk");
    let mut number: u32 = 0;
    let mut bytes = [0; 300];
    loop {
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..].fill(number as u8);
        let room = log.guaranteed_bytes();
        match log.commit([&bytes[..]]) {
            Ok(()) => number += 1,
            Err(CommitError::Full) => {
                assert!(room < 336, "{room} bytes were promised");
                break;
            }
            Err(CommitError::Failed(error)) => panic!("{error}"),
        }
    }
    assert_eq!(number, 4 * 18);
    disk.set_capacity(usize::MAX);
    log.commit([&bytes[..]]).expect("there is room again");
    let (mut found, mut losses) = (Vec::new(), 0);
    let opened = Log::open(
        disk,
        OPTIONS,
        IDENTITY,
        record_events(&mut found, &mut losses),
    );
    assert!(opened.is_ok());
    assert_eq!((found, losses), ((0..=number).collect(), 0));
}
