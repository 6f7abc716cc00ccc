//! What becomes of an event that is sent.

words! {
    /// What became of a sent event.
    pub enum EventDisposition {
        /// It ended the oldest open wait for its name.
        Resumed = "resumed",
        /// Its owner is open but nothing waits for it yet; it is kept, first in first out.
        Buffered = "buffered",
        /// Its owner does not exist yet; it is kept for it.
        Early = "early",
        /// Its owner has ended; it is kept as a record only.
        Late = "late",
        /// An event with this key was sent before; nothing changed.
        Duplicate = "duplicate",
    }
}

/// The state of the workflow or job that an event is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Not created yet.
    Unborn,
    /// Created and not ended.
    Open,
    /// Ended.
    Ended,
}

/// Decides what becomes of an event.
///
/// | owner | key seen before | something waits | |
/// |---|---|---|---|
/// | any | yes | any | duplicate |
/// | unborn | no | any | early |
/// | ended | no | any | late |
/// | open | no | yes | resumed |
/// | open | no | no | buffered |
pub fn disposition(owner: Owner, key_seen: bool, something_waits: bool) -> EventDisposition {
    match owner {
        _ if key_seen => EventDisposition::Duplicate,
        Owner::Unborn => EventDisposition::Early,
        Owner::Ended => EventDisposition::Late,
        Owner::Open if something_waits => EventDisposition::Resumed,
        Owner::Open => EventDisposition::Buffered,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table() {
        use EventDisposition::*;
        for waits in [false, true] {
            for owner in [Owner::Unborn, Owner::Open, Owner::Ended] {
                assert_eq!(disposition(owner, true, waits), Duplicate);
            }
            assert_eq!(disposition(Owner::Unborn, false, waits), Early);
            assert_eq!(disposition(Owner::Ended, false, waits), Late);
        }
        assert_eq!(disposition(Owner::Open, false, true), Resumed);
        assert_eq!(disposition(Owner::Open, false, false), Buffered);
    }

    #[test]
    fn words_round_trip() {
        for &one in EventDisposition::ALL {
            assert_eq!(EventDisposition::parse(one.as_str()), Some(one));
        }
        assert_eq!(EventDisposition::parse("Late"), None);
    }
}
