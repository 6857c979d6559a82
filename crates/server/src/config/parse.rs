//! Reads a settings file as far as it can be read: each fault is told, and the values without one are read all the same.
//!
//! Values with a fault are taken out of the document, which is then read again. Text that is not TOML has the faults of its
//! syntax only: what stands where is not known then.

use std::ops::Range;

use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::locate::{Place, covers, parse_error};
use crate::settings::file::File;

/// Faults that are told of one file: more are the sign of another kind of file.
const FAULTS_MAX: usize = 100;

/// What could be read.
pub struct Parsed {
    pub file: File,
    /// A line for each fault.
    pub faults: Vec<(Place, String)>,
    /// The paths of values that were left out; none where the text is not TOML.
    pub without: Option<Vec<String>>,
}

/// Reads `text`, whose file has this name.
pub fn parse(name: &str, text: &str) -> Parsed {
    let (whole, mut errors) = DeTable::parse_recoverable(text);
    let mut parsed = Parsed {
        file: File::default(),
        faults: Vec::new(),
        without: Some(Vec::new()),
    };
    let mut tell = |error: &toml::de::Error| {
        let (place, path, line) = parse_error(name, text, whole.get_ref(), error);
        parsed.faults.push((place, line));
        path
    };
    if !errors.is_empty() {
        // What follows on a line from its first fault is no fault of its own.
        errors.sort_by_key(|error| error.span().map(|span| span.start));
        let mut told_of = None;
        for error in errors.iter().take(FAULTS_MAX) {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map(|before| before.matches('\n').count());
            if line.is_none() || line != told_of {
                tell(error);
            }
            told_of = line;
        }
        parsed.without = None;
        return parsed;
    }
    let mut document = whole.clone();
    let mut without = Vec::new();
    for _ in 0..FAULTS_MAX {
        let error = match File::deserialize(Deserializer::from(document.clone())) {
            Ok(file) => {
                parsed.file = file;
                break;
            }
            Err(error) => error,
        };
        without.extend(tell(&error));
        let found = error.span().map(|span| take_out(document.get_mut(), &span));
        if found != Some(Found::Gone) {
            break;
        }
    }
    parsed.without = Some(without);
    parsed
}

/// Where the value at a span was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nowhere,
    /// It is this value itself.
    Here,
    /// It is taken out.
    Gone,
}

/// Takes the key or the value at this span out; of a list that has a fault, the whole.
fn take_out(table: &mut DeTable<'_>, span: &Range<usize>) -> Found {
    let mut here = None;
    for (key, value) in table.iter_mut() {
        let found = match covers(&key.span(), span) {
            true => Found::Here,
            false => take_out_of(value, span),
        };
        match found {
            Found::Nowhere => {}
            Found::Gone => return Found::Gone,
            Found::Here => {
                here = Some(key.get_ref().to_string());
                break;
            }
        }
    }
    match here.and_then(|name| table.remove(name.as_str())) {
        Some(_) => Found::Gone,
        None => Found::Nowhere,
    }
}

fn take_out_of(value: &mut Spanned<DeValue<'_>>, span: &Range<usize>) -> Found {
    let below = match value.get_mut() {
        DeValue::Table(table) => take_out(table, span),
        DeValue::Array(list) => {
            let mut found = list.iter_mut().map(|value| take_out_of(value, span));
            found
                .find(|found| *found != Found::Nowhere)
                .unwrap_or(Found::Nowhere)
        }
        _ => Found::Nowhere,
    };
    match below {
        Found::Nowhere if covers(&value.span(), span) => Found::Here,
        below => below,
    }
}
