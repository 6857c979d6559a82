//! The list of attackers, with how often each kind is played.

use std::sync::Arc;

use crate::random::Random;
use crate::script::{Script, TlsStart};
use crate::{absent, centrifugo, crowds, hostile, http, http2, mqtt, places, websocket, work};

/// Makes a script of a random number generator.
type Generator = fn(&mut Random) -> Script;

/// The name, the weight and the generator of each kind. Random sequences of valid and invalid packets have a high weight. Scripts that let
/// a faulty server use hundreds of megabytes, or a second, have a low one, since they take long.
const ALL: &[(&str, usize, Generator)] = &[
    ("http-walk", 20, http::random_requests),
    ("upgrade-walk", 14, websocket::upgrades),
    ("ws-walk", 14, websocket::frames_after_upgrade),
    ("mqtt-walk", 20, mqtt::random_packets),
    ("mqtt-over-ws", 6, mqtt::over_websocket),
    ("several", 6, http::several),
    ("interest", 3, http::interest),
    ("noise", 4, http::noise),
    ("retained", 3, mqtt::retained),
    ("aliases", 2, mqtt::aliases),
    ("unacknowledged", 3, mqtt::unacknowledged),
    ("shares", 2, mqtt::shares),
    ("wrong-acks", 3, mqtt::wrong_acks),
    ("same-id", 3, mqtt::same_id),
    ("bytewise", 3, mqtt::bytewise),
    ("pages", 2, hostile::pages),
    ("filter-pages", 1, hostile::filter_pages),
    ("deaf-crowd", 2, crowds::crowd_without_reading),
    ("past", 3, hostile::whole_log_reads),
    ("half-posts", 2, crowds::half_posts),
    ("pipelined-junk", 2, crowds::pipelined_junk),
    ("expect", 3, hostile::expect),
    ("turned-away", 2, crowds::turned_away),
    ("tls-games", 4, hostile::tls_games),
    ("last-word", 6, websocket::answer_before_close),
    ("topic-makers", 2, places::topic_makers),
    ("followers", 2, places::followers),
    ("deaf-publishers", 2, places::deaf_publishers),
    ("log-fillers", 2, places::log_fillers),
    ("long-lists", 2, places::long_lists),
    ("absent-wills", 2, absent::wills),
    ("absent-filters", 4, absent::filters),
    ("absent-groups", 4, absent::groups),
    ("empty-blocks", 2, work::empty_blocks),
    ("inflating", 2, work::inflating),
    ("deep-filters", 2, work::deep_filters),
    ("groups", 2, work::groups),
    ("refused-lines", 2, work::refused_lines),
    ("filter-churn", 2, work::filter_churn),
    ("wide-fan-out", 2, places::wide_fan_out),
    ("made-up-tokens", 1, places::made_up_tokens),
    ("admin-strangers", 2, places::admin_strangers),
    ("long-origins", 2, work::long_origins),
    ("centrifugo-walk", 8, centrifugo::random_commands),
    (
        "centrifugo-deaf",
        2,
        centrifugo::many_channels_without_reading,
    ),
    ("h2-rapid-reset", 2, http2::rapid_reset),
    ("h2-continuations", 2, http2::continuations),
    ("h2-small-frames", 2, http2::small_frames),
    ("h2-shut-windows", 2, http2::shut_windows),
    ("h2-small-data", 2, http2::small_data),
];

/// The kinds of attackers that are played.
pub struct Kinds(Vec<&'static (&'static str, usize, Generator)>);

impl Kinds {
    /// All kinds, or those in this list of names with commas between.
    pub fn new(only: Option<&str>) -> Kinds {
        let chosen: Vec<_> = ALL
            .iter()
            .filter(|(name, ..)| only.is_none_or(|only| only.split(',').any(|one| one == *name)))
            .collect();
        let names: Vec<&str> = ALL.iter().map(|(name, ..)| *name).collect();
        assert!(!chosen.is_empty(), "{only:?} is none of {names:?}");
        Kinds(chosen)
    }

    /// The names of the kinds.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, ..)| *name)
    }

    /// The script with this number, of a seed. Each kind is played once before any is repeated, so that a short run plays all kinds.
    pub fn script(&self, seed: u64, number: u64) -> Script {
        let mut random = Random::for_script(seed, number);
        let (name, _, generator) = match usize::try_from(number) {
            Ok(number) if number < self.0.len() => self.shuffled(seed)[number],
            _ => self.weighted(&mut random),
        };
        let mut script = generator(&mut random);
        set_kind_and_host(&mut script, name, random.between(2, 5) as u8);
        if script.tls.is_none() && random.one_in(6) {
            script.tls = Some(TlsStart {
                hello_piece: random.pick(&[0, 0, 0, 1, 50]),
                old_version: random.one_in(4),
            });
        }
        script
    }

    fn shuffled(&self, seed: u64) -> Vec<&'static (&'static str, usize, Generator)> {
        let mut random = Random::for_script(seed, u64::MAX);
        let mut kinds = self.0.clone();
        for point in (1..kinds.len()).rev() {
            kinds.swap(point, random.below(point + 1));
        }
        kinds
    }

    fn weighted(&self, random: &mut Random) -> &'static (&'static str, usize, Generator) {
        let total = self.0.iter().map(|(_, weight, _)| weight).sum();
        let mut point = random.below(total);
        for kind in &self.0 {
            if point < kind.1 {
                return kind;
            }
            point -= kind.1;
        }
        self.0[0]
    }
}

/// Sets the kind and the source address of a script, and of the scripts that belong to it.
fn set_kind_and_host(script: &mut Script, kind: &'static str, host: u8) {
    (script.kind, script.host) = (kind, host);
    for other in [&mut script.beside, &mut script.then].into_iter().flatten() {
        if let Some(other) = Arc::get_mut(other) {
            set_kind_and_host(other, kind, host);
        }
    }
}
