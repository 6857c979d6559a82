//! Deltas in the format of Fossil: a new text is encoded as copies of ranges of the old text, and literal bytes.
//!
//! | part | form |
//! |---|---|
//! | length of the new text | number, line end |
//! | copy | length, `@`, offset in the old text, `,` |
//! | literal | length, `:`, bytes |
//! | end | checksum of the new text, `;` |
//!
//! Numbers are in base 64, most significant digit first.
//!
//! Invariants: the work is linear in both lengths for any content. Each block of the old text has one slot in the table, and a later block
//! with the same slot does not replace it. Each byte of the new text is compared a constant number of times. If a text is UTF-8, its
//! literals are UTF-8, so that the delta fits into a JSON string.

use alloc::vec::Vec;

/// Number of bytes of a block.
const BLOCK: usize = 16;
/// The multiplier of the hash of a block.
const BASE: u32 = 0x0100_0193;
/// Spreads a hash over the table (Fibonacci hashing).
const SPREAD: u32 = 0x9E37_79B1;
/// `BASE` to the power of [`BLOCK`]: the factor of the byte that leaves a block.
const LEAVES: u32 = BASE.wrapping_pow(BLOCK as u32);

const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz~";

/// Appends the delta that makes `new` from `old`. It may be longer than `new`; then the caller should send `new`. Calls may share the
/// memory `table`; its content does not matter. Clients compute with 32 bits, so both texts must be shorter than 4 GiB.
pub fn create(old: &[u8], new: &[u8], table: &mut Vec<u32>, out: &mut Vec<u8>) {
    put_number(out, new.len() as u64);
    out.push(b'\n');
    let mut delta = Delta {
        old,
        new,
        done: 0,
        out,
    };
    // Most messages change a little in the middle, often less than a block. So the common beginning and the common end are searched first.
    let prefix = common(old.iter(), new.iter());
    let suffix = common(old[prefix..].iter().rev(), new[prefix..].iter().rev());
    delta.copy(0, 0, prefix);
    let blocks = Blocks::new(&old[..old.len() - suffix], table);
    delta.copies_of_blocks(&blocks, prefix, new.len() - suffix);
    delta.copy(old.len() - suffix, new.len() - suffix, suffix);
    delta.literal(new.len());
    put_number(out, checksum(new).into());
    out.push(b';');
}

/// The number of equal items at the beginning of both iterators.
fn common<'a>(a: impl Iterator<Item = &'a u8>, b: impl Iterator<Item = &'a u8>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).count()
}

struct Delta<'a> {
    old: &'a [u8],
    new: &'a [u8],
    /// The number of bytes of `new` that are encoded so far.
    done: usize,
    out: &'a mut Vec<u8>,
}

impl Delta<'_> {
    /// Writes copies for `new[from..end]` where the old text has the same blocks.
    fn copies_of_blocks(&mut self, blocks: &Blocks<'_>, from: usize, end: usize) {
        let new = self.new;
        let mut at = from;
        let mut hash = None;
        while let Some(window) = new[..end].get(at..at + BLOCK) {
            let current = *hash.get_or_insert_with(|| hash_of(window));
            if let Some(block) = blocks.find(current, window) {
                let back = common(
                    blocks.old[..block].iter().rev(),
                    new[self.done..at].iter().rev(),
                );
                let len = BLOCK
                    + common(
                        blocks.old[block + BLOCK..].iter(),
                        new[at + BLOCK..end].iter(),
                    );
                self.copy(block - back, at - back, back + len);
                at += len;
                hash = None;
                continue;
            }
            let left = u32::from(window[0]).wrapping_mul(LEAVES);
            hash = new.get(at + BLOCK).map(|next| {
                let shifted = current.wrapping_mul(BASE).wrapping_sub(left);
                shifted.wrapping_add((*next).into())
            });
            at += 1;
        }
    }

    /// Writes `new[at..at + len]`, which equals `old[offset..offset + len]`, as a copy, after the literal before it. If the encoded copy
    /// would not be shorter than the bytes, they become part of the next literal.
    fn copy(&mut self, offset: usize, at: usize, len: usize) {
        let (mut start, mut end) = (at, at + len);
        // The start moves forward and the end moves back to the beginning of a character, at most by three bytes.
        let within = |at: usize| self.new.get(at).is_some_and(|byte| byte & 0xC0 == 0x80);
        for _ in 0..3 {
            start += usize::from(start < end && within(start));
            end -= usize::from(start < end && within(end));
        }
        debug_assert_eq!(
            self.new[start..end],
            self.old[offset + start - at..offset + end - at]
        );
        let offset = (offset + start - at) as u64;
        let len = (end - start) as u64;
        if digits(len) + digits(offset) + 2 >= end - start {
            return;
        }
        self.literal(start);
        put_number(self.out, len);
        self.out.push(b'@');
        put_number(self.out, offset);
        self.out.push(b',');
        self.done = end;
    }

    /// Writes the bytes of `new` up to `end` that are not encoded yet.
    fn literal(&mut self, end: usize) {
        let bytes = &self.new[self.done..end];
        if !bytes.is_empty() {
            put_number(self.out, bytes.len() as u64);
            self.out.push(b':');
            self.out.extend_from_slice(bytes);
        }
        self.done = end;
    }
}

/// The blocks of the old text, indexed by their hash.
struct Blocks<'a> {
    old: &'a [u8],
    /// For each slot: the number of a block plus one, or 0. The length is a power of two.
    table: &'a [u32],
}

impl<'a> Blocks<'a> {
    fn new(old: &'a [u8], table: &'a mut Vec<u32>) -> Blocks<'a> {
        let (blocks, _) = old.as_chunks::<BLOCK>();
        table.clear();
        table.resize((2 * blocks.len()).next_power_of_two().max(2), 0);
        for (number, block) in (1..=u32::MAX).zip(blocks) {
            let slot = slot(hash_of(block), table.len());
            if table[slot] == 0 {
                table[slot] = number;
            }
        }
        Blocks { old, table }
    }

    /// The offset of a block that equals `window`.
    fn find(&self, hash: u32, window: &[u8]) -> Option<usize> {
        let number = self.table[slot(hash, self.table.len())].checked_sub(1)?;
        let offset = number as usize * BLOCK;
        (&self.old[offset..offset + BLOCK] == window).then_some(offset)
    }
}

fn hash_of(block: &[u8]) -> u32 {
    let add = |hash: u32, byte: &u8| hash.wrapping_mul(BASE).wrapping_add((*byte).into());
    block.iter().fold(0, add)
}

/// The slot of a hash in a table of `len` slots. `len` is a power of two and at least 2.
const fn slot(hash: u32, len: usize) -> usize {
    (hash.wrapping_mul(SPREAD) >> (u32::BITS - len.ilog2())) as usize
}

/// The sum of the bytes as big-endian words of 32 bits. The last word is padded with zeros.
fn checksum(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let add = |sum: u32, word: &[u8; 4]| sum.wrapping_add(u32::from_be_bytes(*word));
    words.iter().fold(add(0, &last), add)
}

fn put_number(out: &mut Vec<u8>, value: u64) {
    let digits = digits(value);
    let digit = |at: usize| DIGITS[(value >> (6 * at) & 63) as usize];
    out.extend((0..digits).rev().map(digit));
}

/// The number of digits of a number.
const fn digits(value: u64) -> usize {
    let bits = u64::BITS - value.leading_zeros();
    if bits == 0 {
        1
    } else {
        bits.div_ceil(6) as usize
    }
}
