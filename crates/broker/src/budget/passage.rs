//! Bytes on their way from one shard to another that neither has in its account: they are charged to the process, beside the large
//! messages.

use crate::budget::admission::Admission;

/// So many bytes are charged until this is dropped.
#[derive(Debug, Default)]
pub struct Passage(Option<(Admission, usize)>);

impl Passage {
    /// Charges so many bytes.
    pub fn new(admission: &Admission, bytes: usize) -> Passage {
        admission.account.hold_message(bytes);
        Passage(Some((admission.clone(), bytes)))
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if let Some((admission, bytes)) = &self.0 {
            admission.account.let_message_go(*bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Settings;

    #[test]
    fn bytes_are_charged_while_they_are_on_their_way() {
        let admission = Admission::new(&Settings::default(), 7);
        let passages = [7, 13].map(|bytes| Passage::new(&admission, bytes));
        assert_eq!(admission.account.messages_bytes(), 20);
        drop(passages);
        drop(Passage::default());
        assert_eq!(admission.account.messages_bytes(), 0);
    }
}
