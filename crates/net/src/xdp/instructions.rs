//! The instructions of the kernel's program: which frames are ours.
//!
//! Ours are segments of TCP to a listening address and port, and messages of ICMP that a packet is too big for the path, if they quote a
//! segment from such an address and port. All others stay the kernel's: also later fragments, which have no ports, and frames with a VLAN.

use std::net::{IpAddr, SocketAddr};

/// Registers. The kernel changes [`RESULT`] to [`FOURTH`] in a call.
const RESULT: u8 = 0;
const CONTEXT_ARGUMENT: u8 = 1;
/// The first byte of the frame, or of a part of it that begins later; the end of the frame; and two for other numbers.
const FRAME: u8 = 2;
const END: u8 = 3;
const FOURTH: u8 = 4;
const FIFTH: u8 = 5;
const CONTEXT: u8 = 6;
/// The port, and a pointer to the address, that are compared with those of the listeners.
const PORT: u8 = 7;
const ADDRESS: u8 = 8;

/// Operations.
const LOAD_BYTE: u8 = 0x71;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const LOAD_LONG: u8 = 0x18;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const ADD: u8 = 0x07;
const ADD_REGISTER: u8 = 0x0f;
const AND: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const JUMP: u8 = 0x05;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_IF_NOT_EQUAL: u8 = 0x55;
/// Compares 32 bits.
const JUMP_IF_WORD_NOT_EQUAL: u8 = 0x56;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_IF_LESS: u8 = 0xa5;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// In place of a register: the number is a descriptor of a map.
const MAP_DESCRIPTOR: u8 = 1;

/// The verdict that the kernel handles the frame.
const PASS_VERDICT: i32 = 2;
/// `bpf_redirect_map`.
const REDIRECT_MAP_HELPER: i32 = 51;
/// The offset of the queue's number in `struct xdp_md`.
const QUEUE_OFFSET: i16 = 16;

/// Bytes of an Ethernet header, of a header of IPv6, and of the shortest one of IPv4.
const ETHERNET: i16 = 14;
const IPV6: i16 = 40;
const IPV4_MIN: i16 = 20;
/// Bytes of a header of ICMP, after which the quoted packet begins.
const ICMP: i16 = 8;

/// A place in the program that jumps lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    Ipv4,
    Ipv4Tcp,
    Ipv4Match,
    Ipv6,
    Ipv6Tcp,
    Ipv6Match,
    Take,
    Pass,
    /// Behind the comparison with a listening address.
    Next(usize),
}

/// A program whose jumps have no offsets yet.
#[derive(Default)]
struct Assembler {
    code: Vec<[u8; 8]>,
    /// The jumps, by the index of their instruction.
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    /// An instruction: the operation, the registers `destination` and `source`, an offset, and a number.
    fn add(&mut self, operation: u8, destination: u8, source: u8, offset: i16, number: i32) {
        let [o1, o2] = offset.to_ne_bytes();
        let [n1, n2, n3, n4] = number.to_ne_bytes();
        let registers = source << 4 | destination;
        self.code
            .push([operation, registers, o1, o2, n1, n2, n3, n4]);
    }

    fn load(&mut self, operation: u8, into: u8, from: u8, offset: i16) {
        self.add(operation, into, from, offset, 0);
    }

    fn set(&mut self, operation: u8, register: u8, number: i32) {
        self.add(operation, register, 0, 0, number);
    }

    fn copy(&mut self, operation: u8, into: u8, from: u8) {
        self.add(operation, into, from, 0, 0);
    }

    fn jump(&mut self, operation: u8, register: u8, other: u8, number: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.add(operation, register, other, 0, number);
    }

    fn jump_if_equal(&mut self, register: u8, number: i32, label: Label) {
        self.jump(JUMP_IF_EQUAL, register, 0, number, label);
    }

    fn jump_unless_equal(&mut self, register: u8, number: i32, label: Label) {
        self.jump(JUMP_IF_NOT_EQUAL, register, 0, number, label);
    }

    /// Leaves a frame to the kernel that has fewer than `bytes` bytes from [`FRAME`] on. The kernel accepts no program that does not check this.
    fn require(&mut self, bytes: i16) {
        self.copy(MOVE_REGISTER, FOURTH, FRAME);
        self.set(ADD, FOURTH, bytes.into());
        self.jump(JUMP_IF_GREATER, FOURTH, END, 0, Label::Pass);
    }

    /// Reads the length of the header of IPv4 at this offset, and moves [`FRAME`] on by it.
    fn skip_ipv4_header(&mut self, offset: i16) {
        self.load(LOAD_BYTE, FIFTH, FRAME, offset);
        self.set(AND, FIFTH, 15);
        self.set(SHIFT_LEFT, FIFTH, 2);
        self.jump(JUMP_IF_LESS, FIFTH, 0, IPV4_MIN.into(), Label::Pass);
        self.copy(ADD_REGISTER, FRAME, FIFTH);
    }

    fn place(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// The instructions, with the offsets of all jumps.
    fn finish(mut self) -> Vec<u64> {
        for (index, label) in self.jumps {
            let target = self.labels.iter().find(|(known, _)| *known == label);
            let (_, target) = target.expect("each label has a place");
            // Counted from the next instruction. Programs are far shorter than an offset reaches.
            let offset = *target as i16 - index as i16 - 1;
            self.code[index][2..4].copy_from_slice(&offset.to_ne_bytes());
        }
        self.code.into_iter().map(u64::from_ne_bytes).collect()
    }
}

/// The program for these addresses, with this map of sockets by queue.
pub(super) fn build_program(map: i32, addresses: &[SocketAddr]) -> Vec<u64> {
    let mut code = Assembler::default();
    code.copy(MOVE_REGISTER, CONTEXT, CONTEXT_ARGUMENT);
    code.load(LOAD_WORD, FRAME, CONTEXT, 0);
    code.load(LOAD_WORD, END, CONTEXT, 4);
    code.require(ETHERNET + IPV4_MIN);
    code.load(LOAD_HALF, FIFTH, FRAME, 12);
    code.jump_if_equal(FIFTH, half([0x08, 0x00]), Label::Ipv4);
    code.jump_if_equal(FIFTH, half([0x86, 0xdd]), Label::Ipv6);
    code.jump(JUMP, 0, 0, 0, Label::Pass);
    add_ipv4(&mut code);
    compare(&mut code, addresses, true);
    add_ipv6(&mut code);
    compare(&mut code, addresses, false);

    code.place(Label::Take);
    take(&mut code, map);

    code.place(Label::Pass);
    code.set(MOVE, RESULT, PASS_VERDICT);
    code.set(EXIT, 0, 0);
    code.finish()
}

/// The program that takes all frames.
pub(super) fn build_program_for_all(map: i32) -> Vec<u64> {
    let mut code = Assembler::default();
    code.copy(MOVE_REGISTER, CONTEXT, CONTEXT_ARGUMENT);
    take(&mut code, map);
    code.finish()
}

/// Gives the frame to the socket of its queue, or to the kernel if there is none.
fn take(code: &mut Assembler, map: i32) {
    code.load(LOAD_WORD, 2, CONTEXT, QUEUE_OFFSET);
    // This one is as long as two.
    code.add(LOAD_LONG, 1, MAP_DESCRIPTOR, 0, map);
    code.add(0, 0, 0, 0, 0);
    code.set(MOVE, 3, PASS_VERDICT);
    code.set(CALL, 0, REDIRECT_MAP_HELPER);
    code.set(EXIT, 0, 0);
}

fn half(bytes: [u8; 2]) -> i32 {
    u16::from_ne_bytes(bytes).into()
}

fn word(bytes: [u8; 4]) -> i32 {
    i32::from_ne_bytes(bytes)
}

/// Finds the port and the address of ours in a frame of IPv4.
fn add_ipv4(code: &mut Assembler) {
    code.place(Label::Ipv4);
    // Which part of a packet it is.
    code.load(LOAD_HALF, FIFTH, FRAME, ETHERNET + 6);
    code.set(AND, FIFTH, half([0x1f, 0xff]));
    code.jump_unless_equal(FIFTH, 0, Label::Pass);
    code.copy(MOVE_REGISTER, ADDRESS, FRAME);
    code.set(ADD, ADDRESS, (ETHERNET + 16).into());
    code.load(LOAD_BYTE, PORT, FRAME, ETHERNET + 9);
    code.skip_ipv4_header(ETHERNET);
    code.jump_if_equal(PORT, libc::IPPROTO_TCP, Label::Ipv4Tcp);
    code.jump_unless_equal(PORT, libc::IPPROTO_ICMP, Label::Pass);

    // "Fragmentation needed", which quotes a packet of ours.
    code.require(ETHERNET + ICMP + IPV4_MIN);
    code.load(LOAD_HALF, FIFTH, FRAME, ETHERNET);
    code.jump_unless_equal(FIFTH, half([3, 4]), Label::Pass);
    code.load(LOAD_BYTE, FIFTH, FRAME, ETHERNET + ICMP + 9);
    code.jump_unless_equal(FIFTH, libc::IPPROTO_TCP, Label::Pass);
    code.copy(MOVE_REGISTER, ADDRESS, FRAME);
    code.set(ADD, ADDRESS, (ETHERNET + ICMP + 12).into());
    code.skip_ipv4_header(ETHERNET + ICMP);
    code.require(ETHERNET + ICMP + 2);
    code.load(LOAD_HALF, PORT, FRAME, ETHERNET + ICMP);
    code.jump(JUMP, 0, 0, 0, Label::Ipv4Match);

    code.place(Label::Ipv4Tcp);
    code.require(ETHERNET + 4);
    code.load(LOAD_HALF, PORT, FRAME, ETHERNET + 2);
    code.place(Label::Ipv4Match);
    code.load(LOAD_WORD, ADDRESS, ADDRESS, 0);
}

/// Finds the port and the address of ours in a frame of IPv6.
fn add_ipv6(code: &mut Assembler) {
    code.place(Label::Ipv6);
    code.require(ETHERNET + IPV6 + 4);
    code.copy(MOVE_REGISTER, ADDRESS, FRAME);
    code.load(LOAD_BYTE, FIFTH, FRAME, ETHERNET + 6);
    code.jump_if_equal(FIFTH, libc::IPPROTO_TCP, Label::Ipv6Tcp);
    code.jump_unless_equal(FIFTH, libc::IPPROTO_ICMPV6, Label::Pass);

    // "Packet too big", which quotes a packet of ours.
    const QUOTED: i16 = ETHERNET + IPV6 + ICMP;
    code.require(QUOTED + IPV6 + 2);
    code.load(LOAD_BYTE, FIFTH, FRAME, ETHERNET + IPV6);
    code.jump_unless_equal(FIFTH, 2, Label::Pass);
    code.load(LOAD_BYTE, FIFTH, FRAME, QUOTED + 6);
    code.jump_unless_equal(FIFTH, libc::IPPROTO_TCP, Label::Pass);
    code.set(ADD, ADDRESS, (QUOTED + 8).into());
    code.load(LOAD_HALF, PORT, FRAME, QUOTED + IPV6);
    code.jump(JUMP, 0, 0, 0, Label::Ipv6Match);

    code.place(Label::Ipv6Tcp);
    code.set(ADD, ADDRESS, (ETHERNET + 24).into());
    code.load(LOAD_HALF, PORT, FRAME, ETHERNET + IPV6 + 2);
    code.place(Label::Ipv6Match);
}

/// Compares [`PORT`], and [`ADDRESS`] (which is the address of IPv4 itself, and points to one of IPv6), with the listening ones.
fn compare(code: &mut Assembler, addresses: &[SocketAddr], is_ipv4: bool) {
    for (index, listen) in addresses.iter().enumerate() {
        if listen.is_ipv4() != is_ipv4 {
            continue;
        }
        let next = Label::Next(index);
        match listen.ip() {
            IpAddr::V4(ip) => {
                let number = word(ip.octets());
                code.jump(JUMP_IF_WORD_NOT_EQUAL, ADDRESS, 0, number, next);
            }
            IpAddr::V6(ip) => {
                let octets = ip.octets();
                let (words, _) = octets.as_chunks::<4>();
                for (offset, bytes) in [0, 4, 8, 12].into_iter().zip(words) {
                    code.load(LOAD_WORD, FIFTH, ADDRESS, offset);
                    code.jump(JUMP_IF_WORD_NOT_EQUAL, FIFTH, 0, word(*bytes), next);
                }
            }
        }
        code.jump_if_equal(PORT, half(listen.port().to_be_bytes()), Label::Take);
        code.place(next);
    }
    code.jump(JUMP, 0, 0, 0, Label::Pass);
}
