//! HPACK: the vectors of RFC 7541 appendix C, the phases of the dynamic table, and damaged blocks.

use crore_wire::http2::hpack::decode::{DEFAULT_TABLE_BYTES, Decoder};
use crore_wire::http2::hpack::{Error, STATIC, encode};
use proptest::collection::vec;
use proptest::prelude::*;

type List = Vec<(Vec<u8>, Vec<u8>)>;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<List, Error> {
    let mut list = Vec::new();
    decoder.decode(block, &mut Vec::new(), usize::MAX, |name, value| {
        list.push((name.to_vec(), value.to_vec()));
    })?;
    Ok(list)
}

fn list(fields: &[(&str, &str)]) -> List {
    let owned =
        |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    fields.iter().map(owned).collect()
}

#[test]
fn appendix_c_2_single_fields() {
    for (hex, name, value) in [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key",
            "custom-header",
        ),
        (
            "040c 2f73 616d 706c 652f 7061 7468",
            ":path",
            "/sample/path",
        ),
        (
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            "password",
            "secret",
        ),
        ("82", ":method", "GET"),
    ] {
        let events = decode(&mut Decoder::default(), &bytes(hex));
        assert_eq!(events, Ok(list(&[(name, value)])), "{hex}");
    }
}

#[test]
fn appendix_c_3_and_c_4_requests() {
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let huffman = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    let authority = (":authority", "www.example.com");
    let first = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        authority,
    ];
    let second = [&first[..], &[("cache-control", "no-cache")]].concat();
    let third = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        authority,
        ("custom-key", "custom-value"),
    ];
    for blocks in [plain, huffman] {
        let mut decoder = Decoder::default();
        for (block, expected) in blocks.iter().zip([&first[..], &second, &third]) {
            assert_eq!(decode(&mut decoder, &bytes(block)), Ok(list(expected)));
        }
    }
}

#[test]
fn appendix_c_5_and_c_6_responses_with_evictions() {
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 474d
         546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f
         6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b
         2076 6572 7369 6f6e 3d31",
    ];
    let huffman = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7
         8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335
         dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    let rest = [
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ];
    let with_status = |status| [&[(":status", status)][..], &rest].concat();
    let third = [
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        (
            "set-cookie",
            "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        ),
    ];
    let expected = [with_status("302"), with_status("307"), third.to_vec()];
    for blocks in [plain, huffman] {
        let mut decoder = Decoder::default();
        // The examples have a table of 256 bytes.
        assert_eq!(decode(&mut decoder, &bytes("3fe1 01")), Ok(vec![]));
        for (block, expected) in blocks.iter().zip(&expected) {
            assert_eq!(decode(&mut decoder, &bytes(block)), Ok(list(expected)));
        }
        // The three entries of the third response, of 215 bytes, are left.
        let names = ["be", "bf", "c0"].map(|index| decode(&mut decoder, &bytes(index)).unwrap());
        assert_eq!(names.map(|list| list[0].0.len()), [10, 16, 4]);
        assert_eq!(decode(&mut decoder, &bytes("c1")), Err(Error::UnknownIndex));
    }
}

#[test]
fn the_static_table_is_indexed_from_one() {
    for (index, &(name, value)) in (1..).zip(&STATIC) {
        let events = decode(&mut Decoder::default(), &[0x80 | index]);
        assert_eq!(events, Ok(list(&[(name, value)])));
    }
    for index in [0x80, 0x80 | 62] {
        let events = decode(&mut Decoder::default(), &[index]);
        assert_eq!(events, Err(Error::UnknownIndex));
    }
}

#[test]
fn table_is_emptied_by_a_change_of_its_size_to_zero() {
    let mut decoder = Decoder::default();
    let insert = bytes("4001 61 01 62"); // a: b
    assert_eq!(decoder.heap_bytes(), 0);
    decode(&mut decoder, &insert).unwrap();
    assert!(decoder.heap_bytes() > 0);
    decoder.limit();
    // A client that has not read the setting yet, or ignores it.
    assert_eq!(decode(&mut decoder, &[0xbe]), Ok(list(&[("a", "b")])));
    assert_eq!(decode(&mut decoder, &bytes("3f01")), Err(Error::TableSize));
    assert_eq!(decode(&mut decoder, &[0x20, 0x82]).unwrap().len(), 1);
    assert_eq!(decoder.heap_bytes(), 0);
    assert_eq!(decode(&mut decoder, &[0xbe]), Err(Error::UnknownIndex));
    // Inserted into a table without room.
    assert_eq!(decode(&mut decoder, &insert), Ok(list(&[("a", "b")])));
    assert_eq!(decoder.heap_bytes(), 0);
}

#[test]
fn the_table_never_exceeds_its_size() {
    let mut decoder = Decoder::default();
    let value = "v".repeat(100);
    let mut block = vec![0x40, 1, b'n', 100];
    block.extend_from_slice(value.as_bytes());
    for _ in 0..1000 {
        decode(&mut decoder, &block).unwrap();
    }
    // 30 entries of 133 bytes fit.
    assert!(decode(&mut decoder, &[0x80 | (61 + 30)]).is_ok());
    assert_eq!(
        decode(&mut decoder, &[0x80 | (61 + 31)]),
        Err(Error::UnknownIndex)
    );
    assert!(decoder.heap_bytes() < 3 * DEFAULT_TABLE_BYTES);
    // An entry over the limit empties the table.
    let mut huge = bytes("4001 6e 7f81 1f"); // a value of 4,096 bytes
    huge.resize(huge.len() + 4096, b'v');
    decode(&mut decoder, &huge).unwrap();
    assert_eq!(decode(&mut decoder, &[0xbe]), Err(Error::UnknownIndex));
}

#[test]
fn damaged_blocks_are_refused() {
    for (hex, error) in [
        ("40", Error::Truncated),
        ("4001", Error::Truncated),
        ("4001 61", Error::Truncated),
        ("4001 6102 62", Error::Truncated),
        ("7f", Error::Truncated),
        ("7fff ffff ff", Error::Truncated),
        ("ff80 8080 8080 00", Error::Integer),
        ("ffff ffff ff7f", Error::Integer),
        ("ffff ffff ff0f", Error::Integer),
        ("ffff ffff ff07", Error::UnknownIndex),
        ("3fe2 1f", Error::TableSize), // 4,097
        ("8220", Error::TableSize),
        ("0081 0081 00", Error::Huffman),      // zeros as padding
        ("0082 1fff 00", Error::Huffman),      // more than 7 bits of padding
        ("0084 ffff ffff 00", Error::Huffman), // EOS
        ("0083 ffff ff00", Error::Huffman),    // a part of EOS over 7 bits
    ] {
        let events = decode(&mut Decoder::default(), &bytes(hex));
        assert_eq!(events, Err(error), "{hex}");
    }
}

#[test]
fn a_secret_of_an_answer_is_never_indexed() {
    let mut block = Vec::new();
    encode::field(&mut block, b"Set-Cookie", b"s");
    assert_eq!(block, bytes("1f28 01 73"));
    block.clear();
    encode::field(&mut block, b"Content-Type", b"s");
    assert_eq!(block, bytes("0f10 01 73"));
}

/// Codes of the symbols, computed in another way than the decoder does: the RFC's table for one symbol of each length up to 15.
#[test]
fn codes_of_each_length_are_decoded() {
    for (code, length, symbol) in [
        (0x0_u32, 5_u32, b'0'),
        (0x14, 6, b' '),
        (0x5c, 7, b':'),
        (0xf8, 8, b'&'),
        (0x3f8, 10, b'!'),
        (0x7fa, 11, b'\''),
        (0xffa, 12, b'#'),
        (0x1ff8, 13, 0),
        (0x3ffc, 14, b'^'),
        (0x7ffc, 15, b'<'),
        (0x7fff0, 19, b'\\'),
        (0xfffe6, 20, 128),
        (0x1fffdc, 21, 153),
        (0x3fffd2, 22, 129),
        (0x7fffd8, 23, 1),
        (0xffffea, 24, 9),
        (0x1ffffec, 25, 199),
        (0x3ffffe0, 26, 192),
        (0x7ffffde, 27, 203),
        (0xfffffe2, 28, 2),
        (0x3ffffffc, 30, 10),
        (0x3ffffffe, 30, 22),
    ] {
        // The code, then ones to the end of a byte.
        let bits = u64::from(code) << (64 - length) | u64::MAX >> length;
        let len = length.div_ceil(8) as usize;
        let mut block = vec![0, 0x80 | len as u8];
        block.extend_from_slice(&bits.to_be_bytes()[..len]);
        block.push(0);
        let events = decode(&mut Decoder::default(), &block);
        assert_eq!(events, Ok(vec![(vec![symbol], vec![])]), "{length} bits");
    }
}

proptest! {
    #[test]
    fn encoded_fields_decode_to_themselves(
        code in 100_u16..1000,
        fields in vec(("[a-z-]{1,20}|date|content-type|set-cookie", vec(any::<u8>(), 0..400)), 0..20),
    ) {
        let mut block = Vec::new();
        encode::status(&mut block, code);
        for (name, value) in &fields {
            encode::field(&mut block, name.to_uppercase().as_bytes(), value);
        }
        let mut expected = list(&[(":status", &code.to_string())]);
        expected.extend(fields.into_iter().map(|(name, value)| (name.into_bytes(), value)));
        prop_assert_eq!(decode(&mut Decoder::default(), &block), Ok(expected));
    }

    #[test]
    fn any_bytes_do_not_panic(blocks in vec(vec(any::<u8>(), 0..200), 1..10)) {
        let mut decoder = Decoder::default();
        for block in blocks {
            if decode(&mut decoder, &block).is_err() {
                break;
            }
            prop_assert!(decoder.heap_bytes() < 3 * DEFAULT_TABLE_BYTES);
        }
    }
}
