//! Reads the network cards of the host, and finds out which cores handle their packets.

use std::collections::BTreeSet;
use std::fs;

use crate::config::host_files::HostFiles;

/// The directory of network devices, below the root.
const NETWORK_DEVICES: &str = "sys/class/net";

/// A network device that has hardware.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkCard {
    pub name: String,
    /// Number of receive queues.
    pub queues: usize,
    /// The cores that handled the interrupts of the receive queues; empty if none is known.
    pub interrupt_cores: BTreeSet<usize>,
    /// The kernel can pass the packets of a receive queue to several cores (RPS). This is the highest number of cores of any of the card's queues.
    pub rps_cores_max: usize,
}

/// All network cards, without virtual devices (loopback, bridges).
pub fn read_cards(files: &HostFiles<'_>) -> Vec<NetworkCard> {
    let interrupts = files.text("proc/interrupts").unwrap_or_default();
    let names = files.names(NETWORK_DEVICES).into_iter();
    let with_hardware = names.filter(|name| {
        files
            .path(&format!("{NETWORK_DEVICES}/{name}/device"))
            .exists()
    });
    with_hardware
        .map(|name| {
            let device = fs::read_link(files.path(&format!("{NETWORK_DEVICES}/{name}/device")));
            let device = device
                .ok()
                .and_then(|path| {
                    path.file_name()
                        .map(|name| name.to_string_lossy().into_owned())
                })
                .unwrap_or_default();
            let queues = files.names(&format!("{NETWORK_DEVICES}/{name}/queues"));
            let receive_queues = queues.iter().filter(|queue| queue.starts_with("rx-"));
            let rps_core_count = |queue: &String| {
                let mask_file = format!("{NETWORK_DEVICES}/{name}/queues/{queue}/rps_cpus");
                files.text(&mask_file).map_or(0, |mask| count_cores(&mask))
            };
            NetworkCard {
                queues: receive_queues.clone().count(),
                rps_cores_max: receive_queues.map(rps_core_count).max().unwrap_or(0),
                interrupt_cores: interrupt_cores(&interrupts, &[&name, &device]),
                name,
            }
        })
        .collect()
}

/// The number of cores in a mask such as `ff,00000003`.
fn count_cores(mask: &str) -> usize {
    let words = mask.trim().split(',');
    words
        .filter_map(|word| u32::from_str_radix(word, 16).ok())
        .map(|word| word.count_ones() as usize)
        .sum()
}

/// The mask of the first `cores` cores, in the kernel's format.
pub fn core_mask(cores: usize) -> String {
    let words = cores.div_ceil(32).max(1);
    let word = |index: usize| match cores - index * 32 {
        left if left >= 32 => u32::MAX,
        left => (1 << left) - 1,
    };
    let words: Vec<String> = (0..words)
        .rev()
        .map(|index| format!("{:08x}", word(index)))
        .collect();
    words.join(",")
}

/// Parses `/proc/interrupts`. Returns, for each receive queue of one card, the core that handled most of its interrupts. `names` are the names of
/// the card: that of the interface, and that of the device on the bus.
fn interrupt_cores(text: &str, names: &[&str]) -> BTreeSet<usize> {
    let mut lines = text.lines();
    let cores = lines
        .next()
        .map_or(0, |header| header.split_whitespace().count());
    let mut cores_found = BTreeSet::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(counts), Some(interrupt)) = (words.get(1..=cores), words.last()) else {
            continue;
        };
        if !names
            .iter()
            .any(|name| is_receive_queue_of(interrupt, name))
        {
            continue;
        }
        let counts = counts.iter().map(|count| count.parse().unwrap_or(0_u64));
        let busiest = counts.enumerate().max_by_key(|(_, count)| *count);
        if let Some((core, 1..)) = busiest {
            cores_found.insert(core);
        }
    }
    cores_found
}

/// Whether an interrupt's name (`eth0-TxRx-3`, `virtio2-input.0`, `mlx5_comp4@pci:0000:…`) belongs to a receive queue of the device.
fn is_receive_queue_of(interrupt: &str, device: &str) -> bool {
    let Some(index) = (!device.is_empty())
        .then(|| interrupt.find(device))
        .flatten()
    else {
        return false;
    };
    let suffix = &interrupt[index + device.len()..];
    let is_longer_name = suffix.starts_with(|next: char| next.is_ascii_digit());
    let is_no_receive_queue = ["output", "-tx", "config"]
        .iter()
        .any(|word| suffix.contains(word));
    !is_longer_name && !is_no_receive_queue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_read_and_written() {
        assert_eq!(count_cores("00000000,000000ff\n"), 8);
        assert_eq!(count_cores("0\n"), 0);
        assert_eq!(core_mask(2), "00000003");
        assert_eq!(core_mask(32), "ffffffff");
        assert_eq!(core_mask(40), "000000ff,ffffffff");
        assert!([1, 2, 31, 32, 33, 64, 200].map(|n| count_cores(&core_mask(n)) == n) == [true; 7]);
    }

    #[test]
    fn interrupts_are_those_of_queues_that_receive() {
        let text = "           CPU0       CPU1       CPU2\n \
            37:          0          0          9 PCI-MSIX 0-edge virtio2-config\n \
            38:          0      26663          0 PCI-MSIX 1-edge virtio2-input.0\n \
            39:      19064          0          0 PCI-MSIX 2-edge virtio2-output.0\n \
            40:          7          0          0 PCI-MSIX 1-edge virtio21-input.0\n \
            41:          1          0          8 PCI-MSIX 1-edge eth1-TxRx-0\n \
            42:          0          0          0 PCI-MSIX 1-edge eth1-TxRx-1\n\
            ERR:          0\n";
        assert_eq!(
            interrupt_cores(text, &["eth0", "virtio2"]),
            BTreeSet::from([1])
        );
        assert_eq!(interrupt_cores(text, &["eth1", ""]), BTreeSet::from([2]));
        assert_eq!(interrupt_cores("", &["eth1"]), BTreeSet::new());
    }
}
