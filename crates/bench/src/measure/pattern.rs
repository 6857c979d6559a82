//! Patterns of names with ranges: `/p/s{1..1200000}/-`, `127.0.{1...30}.1`. The syntax is that of the benchmark tools of 2013.
//!
//! The names are not stored. Name `i` is computed on demand, so twelve million topics cost no memory. The last range varies fastest. A
//! range counts upwards and includes both ends. The numbers have no leading zeros.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};

/// The maximum number of names of a pattern: topic indices have 32 bits.
const NAMES_MAX: u64 = u32::MAX as u64;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    /// The text before the range.
    before: String,
    first: u32,
    count: u32,
}

/// A name with ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    ranges: Vec<Range>,
    /// The text after the last range.
    tail: String,
    count: u32,
}

impl Pattern {
    /// Parses a pattern. A brace must contain `low..high` or `low...high`.
    pub fn parse(text: &str) -> Result<Pattern> {
        let mut ranges = Vec::new();
        let mut rest = text;
        let mut count = 1u64;
        while let Some((before, after)) = rest.split_once('{') {
            let (inside, after) = after
                .split_once('}')
                .with_context(|| format!("`{text}`: a brace stays open"))?;
            let (low, high) = inside
                .split_once("..")
                .map(|(low, high)| (low, high.strip_prefix('.').unwrap_or(high)))
                .with_context(|| format!("`{text}`: write a range as {{1..100}}"))?;
            let first: u32 = low
                .trim()
                .parse()
                .with_context(|| format!("`{low}` in `{text}`"))?;
            let last: u32 = high
                .trim()
                .parse()
                .with_context(|| format!("`{high}` in `{text}`"))?;
            ensure!(
                first <= last && last < u32::MAX,
                "`{text}`: a range counts upwards"
            );
            count *= u64::from(last - first) + 1;
            ensure!(count <= NAMES_MAX, "`{text}`: more than {NAMES_MAX} names");
            ranges.push(Range {
                before: before.to_string(),
                first,
                count: last - first + 1,
            });
            rest = after;
        }
        ensure!(
            !rest.contains('}'),
            "`{text}`: a brace closes that was not open"
        );
        Ok(Pattern {
            ranges,
            tail: rest.to_string(),
            count: count as u32,
        })
    }

    /// The number of names; at least one.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Appends name `index` (from 0, below [`Pattern::count`]) to `out`.
    pub fn write(&self, index: u32, out: &mut String) {
        let mut weight = self.count;
        for range in &self.ranges {
            weight /= range.count;
            let number = range.first + index / weight % range.count;
            write!(out, "{}{number}", range.before).expect("a String takes all");
        }
        out.push_str(&self.tail);
    }

    /// Name `index`, from 0.
    pub fn name(&self, index: u32) -> String {
        let mut out = String::new();
        self.write(index, &mut out);
        out
    }

    /// The number of the last range in name `index`. The floor identifies its subscribers by this number.
    pub fn number(&self, index: u32) -> u32 {
        self.ranges
            .last()
            .map_or(0, |range| range.first + index % range.count)
    }
}

/// All server addresses: `127.0.0.1:8800`, `127.0.0.1:9000-9199`, `127.0.0.{1..4}:8800`.
pub fn servers(texts: &[String]) -> Result<Vec<SocketAddr>> {
    let mut out = Vec::new();
    for text in texts {
        let braced = match text.rsplit_once(':') {
            Some((host, ports)) if !ports.contains('{') => match ports.split_once('-') {
                Some((low, high)) => format!("{host}:{{{low}..{high}}}"),
                None => text.clone(),
            },
            Some(_) => text.clone(),
            None => bail!("`{text}`: write ADDRESS:PORT"),
        };
        expand(&braced, "ADDRESS:PORT", &mut out)?;
    }
    Ok(out)
}

/// All local addresses of a pattern.
pub fn addresses(texts: &[String]) -> Result<Vec<IpAddr>> {
    let mut out = Vec::new();
    for text in texts {
        expand(text, "an address", &mut out)?;
    }
    Ok(out)
}

/// Parses each name of a pattern and appends the values.
fn expand<T: FromStr>(text: &str, what: &str, out: &mut Vec<T>) -> Result<()> {
    let pattern = Pattern::parse(text)?;
    for name in (0..pattern.count()).map(|index| pattern.name(index)) {
        let value = name.parse().ok();
        out.push(value.with_context(|| format!("`{name}` is not {what}"))?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_ranges_of_2013_are_read() {
        let two = Pattern::parse("/p/s{1..1200000}/-").unwrap();
        let three = Pattern::parse("/p/s{1...1200000}/-").unwrap();
        assert_eq!(two, three);
        assert_eq!(two.count(), 1_200_000);
        assert_eq!(two.name(0), "/p/s1/-");
        assert_eq!(two.name(1_199_999), "/p/s1200000/-");
        assert_eq!(two.number(41), 42);
    }

    #[test]
    fn malformed_range_is_refused() {
        for text in [
            "a{1..",
            "a{1}",
            "a}",
            "a{2..1}",
            "a{x..3}",
            "{1..70000}{1..70000}",
        ] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
        assert_eq!(Pattern::parse("plain").unwrap().name(0), "plain");
    }

    #[test]
    fn server_ports_may_be_a_range() {
        let list = servers(&["127.0.0.1:9000-9002".into(), "127.0.0.{2..3}:80".into()]).unwrap();
        let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
        let expected = [
            "127.0.0.1:9000",
            "127.0.0.1:9001",
            "127.0.0.1:9002",
            "127.0.0.2:80",
            "127.0.0.3:80",
        ];
        assert_eq!(texts, expected);
        assert!(servers(&["localhost".into()]).is_err());
    }

    proptest! {
        #[test]
        fn names_are_as_many_as_counted_and_all_distinct(
            ranges in prop::collection::vec((0u32..1000, 1u32..12), 0..3),
        ) {
            let text: String =
                ranges.iter().map(|(low, n)| format!("x{{{low}..{}}}", low + n - 1)).collect();
            let pattern = Pattern::parse(&format!("{text}.end")).unwrap();
            let names: HashSet<String> = (0..pattern.count()).map(|i| pattern.name(i)).collect();
            let product: u32 = ranges.iter().map(|(_, n)| n).product();
            prop_assert_eq!(pattern.count(), product);
            prop_assert_eq!(names.len() as u32, product);
            for index in 0..pattern.count() {
                let name = pattern.name(index);
                let digits = name.trim_end_matches(".end").rsplit('x').next().unwrap().to_string();
                if !ranges.is_empty() {
                    prop_assert_eq!(digits, pattern.number(index).to_string());
                }
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _ = Pattern::parse(&text);
        }
    }
}
