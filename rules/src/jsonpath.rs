//! What an SQL/JSON path names.
//!
//! Postgres checks the syntax of a path and evaluates it; here is only read, lexically, which members of
//! the root it goes to. Every `$` outside of string literals counts, those inside filters too, because what
//! a path names decides which steps are read before it is evaluated.

use std::iter::Peekable;
use std::str::Chars;

use crate::definition::quote;

/// Something that a path must not name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `definition.unknown_root`, `definition.not_supported` or `definition.invalid_path`.
    pub code: &'static str,
    /// What is wrong, for people.
    pub message: String,
}

/// What a path names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// The steps of `$.steps.<key>`, in order of appearance, each once.
    pub steps: Vec<String>,
    /// What it must not name.
    pub faults: Vec<Fault>,
}

/// The members of a step below `$.steps.<key>`.
pub const STEP_MEMBERS: &[&str] = &["status", "output", "error"];
/// The members below `$.workflow`.
pub const WORKFLOW_MEMBERS: &[&str] = &["id", "name", "version", "metadata"];

/// Reads what a path names. Text that is no path gives an answer as well, without meaning.
///
/// | the path goes to | |
/// |---|---|
/// | `$.input…`, `$.workflow`, `$.workflow.{id,name,version,metadata}…` | fine |
/// | `$.steps.<key>`, `$.steps.<key>.{status,output,error}…` | names the step |
/// | `$.steps`, `$.steps.*`, `$.steps[…]` | fault: would read every step |
/// | `$.item`, `$.index`, `$.output` | fault: exist in map and repeat steps, which come later |
/// | `$`, `$.*`, `$[…]`, any other member | fault |
/// | `$name` | fault: there are no variables |
/// | a comment | fault: Postgres reads `$.steps.a/**/b` as `$.steps.b` (its lexer forgets the name before it) |
pub fn named(path: &str) -> Named {
    let mut scanner = Scanner {
        chars: path.chars().peekable(),
        named: Named::default(),
    };
    scanner.scan();
    scanner.named
}

/// What follows a place in a path.
enum Member {
    Name(String),
    /// `.name(…)`, `.*`, `.**`
    Computed,
    /// No member accessor.
    None,
}

struct Scanner<'a> {
    chars: Peekable<Chars<'a>>,
    named: Named,
}

impl Scanner<'_> {
    fn scan(&mut self) {
        while let Some(c) = self.chars.next() {
            match c {
                '"' => {
                    self.quoted();
                }
                '/' if self.chars.peek() == Some(&'*') => {
                    return self.fault("definition.invalid_path", "a path has no comments".into());
                }
                '\\' => {
                    // An escaped quote in a bare name does not begin a literal.
                    self.chars.next();
                }
                '$' => self.root(),
                _ => {}
            }
        }
    }

    /// After a `$`.
    fn root(&mut self) {
        if self.chars.peek().is_some_and(|c| *c == '"' || is_name(*c)) {
            let name = self.name();
            return self.fault(
                "definition.invalid_path",
                format!("there is no variable ${name}"),
            );
        }
        match self.member() {
            Member::Name(root) => match root.as_str() {
                "input" => {}
                "steps" => self.step(),
                "workflow" => {
                    if let Member::Name(member) = self.member() {
                        self.expect_member("workflow", &member, WORKFLOW_MEMBERS);
                    }
                }
                "item" | "index" => self.fault(
                    "definition.not_supported",
                    format!("$.{root} exists in map steps only, which this version does not have"),
                ),
                "output" => self.fault(
                    "definition.not_supported",
                    "$.output exists in the until of repeat only, which this version does not have"
                        .into(),
                ),
                _ => self.fault(
                    "definition.unknown_root",
                    format!(
                        "a path begins with $.input, $.steps or $.workflow, not with $.{}",
                        quote(&root)
                    ),
                ),
            },
            Member::Computed | Member::None => self.fault(
                "definition.unknown_root",
                "a path names what it reads: $.input, $.steps.<key> or $.workflow".into(),
            ),
        }
    }

    /// After `$.steps`.
    fn step(&mut self) {
        match self.member() {
            Member::Name(step) => {
                if !self.named.steps.contains(&step) {
                    self.named.steps.push(step);
                }
                if let Member::Name(member) = self.member() {
                    self.expect_member("a step", &member, STEP_MEMBERS);
                }
            }
            Member::Computed | Member::None => self.fault(
                "definition.invalid_path",
                "a path names the step it reads: $.steps.<key>".into(),
            ),
        }
    }

    fn expect_member(&mut self, owner: &str, member: &str, members: &[&str]) {
        if !members.contains(&member) {
            let message = format!(
                "{owner} has {}, and no {}",
                members.join(", "),
                quote(member)
            );
            self.fault("definition.unknown_root", message);
        }
    }

    /// The member accessor that follows, if one does.
    fn member(&mut self) -> Member {
        self.blanks();
        if self.chars.peek() != Some(&'.') {
            return Member::None;
        }
        self.chars.next();
        self.blanks();
        if !self.chars.peek().is_some_and(|c| *c == '"' || is_name(*c)) {
            return Member::Computed;
        }
        let name = self.name();
        self.blanks();
        if self.chars.peek() == Some(&'(') {
            Member::Computed
        } else {
            Member::Name(name)
        }
    }

    /// A name, bare or in quotes.
    fn name(&mut self) -> String {
        if self.chars.next_if_eq(&'"').is_some() {
            return self.quoted();
        }
        let mut name = String::new();
        while let Some(c) = self.chars.next_if(|c| is_name(*c)) {
            if c == '\\' {
                self.escape(&mut name);
            } else {
                name.push(c);
            }
        }
        name
    }

    /// The rest of a literal, after its opening quote.
    fn quoted(&mut self) -> String {
        let mut text = String::new();
        while let Some(c) = self.chars.next() {
            match c {
                '"' => break,
                '\\' => self.escape(&mut text),
                c => text.push(c),
            }
        }
        text
    }

    /// After a backslash.
    fn escape(&mut self, text: &mut String) {
        let Some(c) = self.chars.next() else { return };
        let decoded = match c {
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            'x' => self.hex(2).and_then(char::from_u32),
            'u' => self.unicode(),
            other => Some(other),
        };
        text.push(decoded.unwrap_or(char::REPLACEMENT_CHARACTER));
    }

    /// After `\u`: `XXXX`, a surrogate pair of them, or `{X…}`.
    fn unicode(&mut self) -> Option<char> {
        if self.chars.next_if_eq(&'{').is_some() {
            let mut code = 0u32;
            while let Some(digit) = self.digit() {
                code = code.checked_mul(16)?.checked_add(digit)?;
            }
            self.chars.next_if_eq(&'}')?;
            return char::from_u32(code);
        }
        let first = self.hex(4)?;
        if !(0xD800..0xDC00).contains(&first) {
            return char::from_u32(first);
        }
        self.chars.next_if_eq(&'\\')?;
        self.chars.next_if_eq(&'u')?;
        let second = self.hex(4)?.checked_sub(0xDC00)?;
        char::from_u32(0x10000 + ((first - 0xD800) << 10) + second)
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        let mut code = 0;
        for _ in 0..digits {
            code = code * 16 + self.digit()?;
        }
        Some(code)
    }

    fn digit(&mut self) -> Option<u32> {
        self.chars.next_if(char::is_ascii_hexdigit)?.to_digit(16)
    }

    fn blanks(&mut self) {
        while self.chars.next_if(|c| is_blank(*c)).is_some() {}
    }

    fn fault(&mut self, code: &'static str, message: String) {
        self.named.faults.push(Fault { code, message });
    }
}

/// The blanks of Postgres's path lexer.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{c}')
}

/// May this stand in a bare name? What Postgres's path lexer calls `other`, and the backslash of an escape.
fn is_name(c: char) -> bool {
    !is_blank(c)
        && !matches!(
            c,
            '?' | '%'
                | '$'
                | '.'
                | '['
                | ']'
                | '{'
                | '}'
                | '('
                | ')'
                | '|'
                | '&'
                | '!'
                | '='
                | '<'
                | '>'
                | '@'
                | '#'
                | ','
                | '*'
                | ':'
                | '-'
                | '+'
                | '/'
                | '"'
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn steps_are_found_wherever_they_are_named() {
        let table: [(&str, &[&str]); 14] = [
            ("$.steps.charge.output.receipt", &["charge"]),
            ("$.steps.\"charge\".output", &["charge"]),
            ("$.\"steps\".\"ch\\u0061rge\"", &["charge"]),
            ("$.steps.\\u{63}harge.status", &["charge"]),
            ("$ . steps\t . charge\n.status", &["charge"]),
            ("lax $.steps.a.output > $.steps.b.output", &["a", "b"]),
            ("$.input.items[*] ? (@.id == $.steps.a.output.id)", &["a"]),
            ("$.input.x == \"$.steps.a\"", &[]),
            ("$.input.x like_regex \"^\\\"$.steps.a\"", &[]),
            ("$.input.x starts with \"/* $.steps.a\"", &[]),
            (
                "$.steps.a.status == \"x\" && $.steps.a.error.code == 1",
                &["a"],
            ),
            ("exists($.steps.a.output ? (@ > 1))", &["a"]),
            ("$.steps.a.output.size() - 1", &["a"]),
            ("$.steps.a ? (@.status == \"failed\").output", &["a"]),
        ];
        for (path, steps) in table {
            let named = named(path);
            assert_eq!(named.faults, [], "{path}");
            assert_eq!(named.steps, steps, "{path}");
        }
    }

    #[test]
    fn what_must_not_be_named() {
        let table = [
            ("$", "definition.unknown_root"),
            ("$.*", "definition.unknown_root"),
            ("$.**", "definition.unknown_root"),
            ("$[0]", "definition.unknown_root"),
            ("$ ? (@.input == 1)", "definition.unknown_root"),
            ("$.keyvalue()", "definition.unknown_root"),
            ("$.inputs.a", "definition.unknown_root"),
            ("$.workflow.owner", "definition.unknown_root"),
            ("$.steps.a.result", "definition.unknown_root"),
            ("$.steps", "definition.invalid_path"),
            ("$.steps.*.output", "definition.invalid_path"),
            ("$.steps[*]", "definition.invalid_path"),
            ("$.steps.keyvalue()", "definition.invalid_path"),
            ("$.input.a == $limit", "definition.invalid_path"),
            ("$.input.a == $\"limit\"", "definition.invalid_path"),
            ("$.steps.a/**/b.output", "definition.invalid_path"),
            ("$.input /* $ */", "definition.invalid_path"),
            ("$.item.x", "definition.not_supported"),
            ("$.index", "definition.not_supported"),
            ("$.output.done == true", "definition.not_supported"),
        ];
        for (path, code) in table {
            let faults = named(path).faults;
            assert_eq!(faults.len(), 1, "{path}");
            assert_eq!(faults[0].code, code, "{path}");
        }
    }

    #[test]
    fn the_rest_is_fine() {
        for path in [
            "$.input",
            "$.input.*",
            "$.input.items[*].id",
            "$.workflow",
            "$.workflow.id",
            "$.workflow.metadata.tenant",
            "$.workflow.*",
            "$.steps.a.*",
            "$.input.\"$.steps.b\"",
            "",
        ] {
            assert_eq!(named(path).faults, [], "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_text_has_an_answer(path in ".{0,60}") {
            named(&path);
        }

        #[test]
        fn any_text_of_path_characters_has_an_answer(path in "[$.*/\\\\\"u{}x0-9a steps()]{0,60}") {
            named(&path);
        }
    }
}
