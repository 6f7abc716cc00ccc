//! One thing that is wrong with a definition, and where.

/// One thing that is wrong with a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where: a JSON pointer (RFC 6901) into the definition as it was given.
    pub pointer: String,
    /// What kind of problem; stable, begins with `definition.`.
    pub code: &'static str,
    /// What is wrong, for people.
    pub message: String,
}

#[derive(Clone, Copy)]
enum Segment<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

/// A place in the definition. It lives on the stack of the reader and becomes text only for a problem,
/// so that a valid definition builds no pointers.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    parent: Option<&'a At<'a>>,
    segment: Segment<'a>,
}

impl<'a> At<'a> {
    pub(crate) const ROOT: At<'static> = At {
        parent: None,
        segment: Segment::Root,
    };

    pub(crate) fn key(&'a self, key: &'a str) -> At<'a> {
        At {
            parent: Some(self),
            segment: Segment::Key(key),
        }
    }

    pub(crate) fn index(&'a self, index: usize) -> At<'a> {
        At {
            parent: Some(self),
            segment: Segment::Index(index),
        }
    }

    pub(crate) fn pointer(&self) -> String {
        let mut segments = Vec::new();
        let mut at = Some(self);
        while let Some(here) = at {
            segments.push(here.segment);
            at = here.parent;
        }
        let mut pointer = String::new();
        for segment in segments.iter().rev() {
            match segment {
                Segment::Root => {}
                Segment::Key(key) => {
                    pointer.push('/');
                    pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
                }
                Segment::Index(index) => pointer.push_str(&format!("/{index}")),
            }
        }
        pointer
    }
}

/// A text of the user in a message: in quotes, escaped, and cut when it is long.
pub(crate) fn quote(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_escaped() {
        let steps = At::ROOT.key("steps");
        let step = steps.index(3);
        let field = step.key("a/b~c");
        assert_eq!(field.pointer(), "/steps/3/a~1b~0c");
        assert_eq!(At::ROOT.pointer(), "");
    }

    #[test]
    fn quotes_are_short() {
        assert_eq!(quote("a\nb"), "\"a\\nb\"");
        assert_eq!(quote(&"é".repeat(61)), format!("\"{}\"…", "é".repeat(60)));
    }
}
