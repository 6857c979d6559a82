//! A socket of one queue of an interface.
//!
//! Invariant: each frame of the memory is in one place: the fill ring or the kernel's hands, the receive ring, the transmit ring or the
//! completion ring, or the list of free ones. Half of the frames receive and half transmit.

use std::io;
use std::mem::replace;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions,
    XdpStatistics,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};

use super::ring::{Consumer, Producer};
use super::umem::Umem;

/// The largest number of frames for receiving, which are 128 MiB.
pub const MAX_FRAMES: u32 = 1 << 16;

/// The settings of a socket.
#[derive(Clone, Copy, Debug)]
pub struct FrameSettings {
    /// The number of frames for receiving, and also of frames for transmitting. A power of two.
    pub frames: u32,
    /// Bytes of a frame: 2,048, or the size of a page. The kernel keeps 256 of them for itself when it receives. The rest limits the MTU.
    pub frame_bytes: u32,
}

impl FrameSettings {
    /// Bytes of memory of a queue: its frames, and their places in the four rings.
    pub fn queue_bytes(&self) -> u64 {
        let places = (3 * size_of::<u64>() + 2 * size_of::<XdpDesc>()) as u64;
        u64::from(self.frames) * (2 * u64::from(self.frame_bytes) + places)
    }
}

impl Default for FrameSettings {
    fn default() -> FrameSettings {
        FrameSettings {
            frames: 2_048,
            frame_bytes: 2_048,
        }
    }
}

/// A socket of one queue of an interface. Its two sides can be used at the same time.
pub struct XdpSocket {
    fd: Rc<OwnedFd>,
    /// Receives frames.
    pub receiver: Receiver,
    /// Transmits frames.
    pub transmitter: Transmitter,
}

/// The receiving side of a socket.
pub struct Receiver {
    fd: Rc<OwnedFd>,
    umem: Umem,
    fill_ring: Producer<u64>,
    receive_ring: Consumer<XdpDesc>,
}

/// The transmitting side of a socket.
pub struct Transmitter {
    fd: Rc<OwnedFd>,
    umem: Umem,
    completion_ring: Consumer<u64>,
    transmit_ring: Producer<XdpDesc>,
    /// The addresses of the free frames.
    free_frames: Vec<u64>,
}

impl XdpSocket {
    /// Opens the socket of a queue. It receives the frames that a program of the interface sends to it, and can transmit at once. The
    /// interface must be up.
    ///
    /// # Errors
    /// If the kernel, the driver or the rights of this process do not allow it (`CAP_NET_RAW`), or if the queue has a socket.
    pub fn bind(interface: u32, queue: u32, settings: FrameSettings) -> io::Result<XdpSocket> {
        let (count, flags) = (settings.frames, SocketFlags::CLOEXEC);
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)?;
        let [receive_umem, transmit_umem] = Umem::halves(count, settings.frame_bytes)?;
        sockopt::set_xdp_umem_reg(&fd, receive_umem.registration())?;
        // The kernel may not have taken the last places of frames out of the ring that it has given us.
        let fill_count = 2 * count;
        sockopt::set_xdp_umem_fill_ring_size(&fd, fill_count)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, count)?;
        sockopt::set_xdp_rx_ring_size(&fd, count)?;
        sockopt::set_xdp_tx_ring_size(&fd, count)?;
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        let borrowed = fd.as_fd();
        let mut fill_ring =
            Producer::map(borrowed, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, fill_count)?;
        let completion_offset = XDP_UMEM_PGOFF_COMPLETION_RING;
        let completion_ring = Consumer::map(borrowed, completion_offset, offsets.cr, count)?;
        let receive_ring = Consumer::map(borrowed, XDP_PGOFF_RX_RING, offsets.rx, count)?;
        let transmit_ring = Producer::map(borrowed, XDP_PGOFF_TX_RING, offsets.tx, count)?;
        for address in receive_umem.addresses() {
            fill_ring.push(address);
        }
        fill_ring.publish();
        let flags = SocketAddrXdpFlags::XDP_COPY | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        bind(&fd, &SocketAddrXdp::new(flags, interface, queue))?;
        let fd = Rc::new(fd);
        Ok(XdpSocket {
            receiver: Receiver {
                fd: Rc::clone(&fd),
                umem: receive_umem,
                fill_ring,
                receive_ring,
            },
            transmitter: Transmitter {
                fd: Rc::clone(&fd),
                free_frames: transmit_umem.addresses().collect(),
                umem: transmit_umem,
                completion_ring,
                transmit_ring,
            },
            fd,
        })
    }

    /// Waits for a frame, at most `timeout`. Returns whether there is one.
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout))
            .is_ok_and(|ready| ready > 0)
    }
}

impl Receiver {
    /// The kernel's counts of dropped frames since the socket was made.
    ///
    /// # Errors
    /// None that is known.
    pub fn drop_statistics(&self) -> io::Result<XdpStatistics> {
        Ok(sockopt::xdp_statistics(&self.fd)?)
    }

    /// Calls `handle_frame` with each frame that has arrived, at most `frames_max` of them. Returns their number.
    pub fn receive(&mut self, frames_max: usize, mut handle_frame: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < frames_max
            && let Some(frame) = self.receive_ring.pop()
        {
            count += 1;
            if let Some(bytes) = self.umem.read(frame.addr, frame.len) {
                handle_frame(bytes);
            }
            // The ring has room for twice as many frames as receive.
            self.fill_ring.push(frame.addr);
        }
        if count > 0 {
            self.fill_ring.publish();
        }
        if self.fill_ring.needs_wakeup() {
            // This call only wakes the kernel: received frames are in the ring, and the call itself returns none.
            let _ = recv(&self.fd, &mut [0; 0][..], RecvFlags::DONTWAIT);
        }
        count
    }
}

impl Transmitter {
    /// Lets `fill` write a frame of `bytes` bytes, which [`Transmitter::flush`] transmits. `false` if there is no room for it.
    pub fn transmit(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        if self.free_frames.is_empty() {
            self.reclaim();
        }
        // A frame may be free while the kernel has not taken its last place out of the ring.
        if !self.transmit_ring.has_room() {
            return false;
        }
        let Some(address) = self.free_frames.pop() else {
            return false;
        };
        let length = bytes as u32;
        let Some(frame) = self.umem.write(address, length) else {
            self.free_frames.push(address);
            return false;
        };
        fill(frame);
        self.transmit_ring.push(XdpDesc {
            addr: address,
            len: length,
            options: XdpDescOptions::empty(),
        })
    }

    /// Lets the kernel transmit what was written. If the kernel has no room, or if the interface is down, the rest leaves with a later call.
    pub fn flush(&mut self) {
        self.transmit_ring.publish();
        let mut waiting = self.transmit_ring.unconsumed();
        while waiting > 0 && self.transmit_ring.needs_wakeup() {
            // One call transmits only some frames. What it could not transmit is still in the ring.
            let _ = send(&self.fd, &[], SendFlags::DONTWAIT);
            let before = replace(&mut waiting, self.transmit_ring.unconsumed());
            if waiting >= before && self.reclaim() == 0 {
                break;
            }
        }
        self.reclaim();
    }

    /// Whether the kernel still has to transmit frames that were flushed.
    pub fn has_waiting(&self) -> bool {
        self.transmit_ring.unconsumed() > 0
    }

    /// Whether there is a free frame.
    pub fn has_room(&self) -> bool {
        !self.free_frames.is_empty()
    }

    /// Takes back the frames that were transmitted, and returns their number.
    fn reclaim(&mut self) -> usize {
        let before = self.free_frames.len();
        while let Some(address) = self.completion_ring.pop() {
            self.free_frames.push(address);
        }
        self.free_frames.len() - before
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
