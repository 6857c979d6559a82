//! A macro for enums whose variants operators see: each variant has a word (such as the value of a metric's label) and a description.

/// Defines the enum. A row is one line: variant, word, description.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $type:ident { $($name:ident, $word:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $(#[doc = $text] $name,)*
        }

        impl $type {
            /// All variants, in order.
            pub const ALL: [$type; [$($word),*].len()] = [$($type::$name,)*];

            /// All words with their descriptions, in Markdown.
            pub const WORDS: &str = concat!($("; `", $word, "`: ", $text),*);

            /// The word for operators.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$name => $word,)*
                }
            }
        }
    };
}

pub(crate) use words;
