//! Enums whose members have a word for operators, such as the value of a metric's label, and a text: one row for each.

/// One row is one line: the member, its word, its text.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $type:ident { $($name:ident, $word:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $(#[doc = $text] $name,)*
        }

        impl $type {
            /// All of them, in order.
            pub const ALL: [$type; [$($word),*].len()] = [$($type::$name,)*];

            /// All words with their texts, in Markdown.
            pub const WORDS: &str = concat!($("; `", $word, "`: ", $text),*);

            /// In one word.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$name => $word,)*
                }
            }
        }
    };
}

pub(crate) use words;
