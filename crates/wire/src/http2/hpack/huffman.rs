//! Decodes strings in the Huffman code of HPACK (RFC 7541 section 5.2, appendix B).
//!
//! The code is canonical: codes of the same length are consecutive, in the order of their symbols, and follow the shorter codes. So the
//! lengths determine the code, and all tables are computed from them. Nearly all symbols of real heads have at most 8 bits, and a lookup in
//! one table finds them. A longer code is compared with the end of the codes of each length.

use alloc::vec::Vec;

use super::Error;

/// The symbol for the end of the string, which no string may contain.
const EOS: u16 = 256;
const SYMBOLS: usize = 257;
/// The longest code, in bits.
const LENGTH_MAX: usize = 30;

/// The length in bits of the code of each byte, and of [`EOS`].
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28,
    28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6,
    6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26,
    24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24,
    24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// The tables of the decoder.
struct Code {
    /// All symbols in the order of their codes.
    symbols: [u16; SYMBOLS],
    /// For each length: where its codes end, as the first bits of a 32-bit window.
    ends: [u64; LENGTH_MAX + 1],
    /// For each length: its first code.
    first_codes: [u32; LENGTH_MAX + 1],
    /// For each length: the index of its first symbol in `symbols`.
    first_symbols: [u16; LENGTH_MAX + 1],
    /// For the next 8 bits: the symbol and the length of its code. The length is 0 if the code is longer than 8 bits.
    short: [(u8, u8); 256],
}

static CODE: Code = code();

const fn code() -> Code {
    let mut code = Code {
        symbols: [0; SYMBOLS],
        ends: [0; LENGTH_MAX + 1],
        first_codes: [0; LENGTH_MAX + 1],
        first_symbols: [0; LENGTH_MAX + 1],
        short: [(0, 0); 256],
    };
    let (mut next_code, mut next_symbol) = (0_u32, 0);
    let mut length = 1;
    while length <= LENGTH_MAX {
        next_code <<= 1;
        code.first_codes[length] = next_code;
        code.first_symbols[length] = next_symbol as u16;
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                code.symbols[next_symbol] = symbol as u16;
                next_symbol += 1;
                if length <= 8 {
                    let start = (next_code as usize) << (8 - length);
                    let mut at = start;
                    while at < start + (1 << (8 - length)) {
                        code.short[at] = (symbol as u8, length as u8);
                        at += 1;
                    }
                }
                next_code += 1;
            }
            symbol += 1;
        }
        code.ends[length] = (next_code as u64) << (32 - length);
        length += 1;
    }
    assert!(next_symbol == SYMBOLS && code.ends[LENGTH_MAX] == 1 << 32);
    code
}

/// Decodes a whole string and appends it to `out`.
///
/// # Errors
/// [`Error::Huffman`] if the string contains [`EOS`], or does not end in fewer than 8 bits that are all ones.
pub fn decode(string: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    // The next bits of the string, at the top of the window. The bits below are zeros.
    let (mut window, mut bits) = (0_u64, 0);
    let mut rest = string.iter();
    loop {
        while bits <= 56
            && let Some(&byte) = rest.next()
        {
            window |= u64::from(byte) << (56 - bits);
            bits += 8;
        }
        // Whatever code of at most 8 bits comes next, the window has all of it.
        while bits >= 8 {
            let (symbol, length) = CODE.short[(window >> 56) as usize];
            if length == 0 {
                break;
            }
            out.push(symbol);
            window <<= length;
            bits -= u32::from(length);
        }
        if bits < LENGTH_MAX as u32 && !rest.as_slice().is_empty() {
            continue;
        }
        let (symbol, length) = next_symbol(window);
        if length > bits {
            // The last byte is padded with a prefix of EOS, which is all ones.
            let is_padding = bits < 8 && window == !(u64::MAX >> bits);
            return if is_padding {
                Ok(())
            } else {
                Err(Error::Huffman)
            };
        }
        if symbol == EOS {
            return Err(Error::Huffman);
        }
        out.push(symbol as u8);
        window <<= length;
        bits -= length;
    }
}

/// The symbol whose code is at the top of the window, and the length of the code.
#[inline]
fn next_symbol(window: u64) -> (u16, u32) {
    let (symbol, length) = CODE.short[(window >> 56) as usize];
    if length > 0 {
        return (symbol.into(), length.into());
    }
    let next = window >> 32;
    let mut length = 9;
    while next >= CODE.ends[length] {
        length += 1;
    }
    let code = (next >> (32 - length)) as u32;
    let place = code - CODE.first_codes[length] + u32::from(CODE.first_symbols[length]);
    (CODE.symbols[place as usize], length as u32)
}
