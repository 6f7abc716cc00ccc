//! The states of a workflow.

use crate::job::Directive;

words! {
    /// The stored state of a workflow. `waiting` is derived when read and never stored.
    pub enum WorkflowState {
        Running = "running",
        Paused = "paused",
        Succeeded = "succeeded",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

/// What happens to a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkflowInput {
    /// Somebody asks for its end.
    Cancel,
    /// Somebody asks it to stop claiming work.
    Pause,
    /// Somebody asks it to go on.
    Resume,
    /// Nothing is live any more and [`final_state`] says succeeded.
    Succeed,
    /// Nothing is live any more, or its time is over, and [`final_state`] says failed.
    Fail,
}

impl WorkflowInput {
    /// Every input.
    pub const ALL: &'static [Self] = &[
        Self::Cancel,
        Self::Pause,
        Self::Resume,
        Self::Succeed,
        Self::Fail,
    ];
}

impl WorkflowState {
    /// Has it ended? Then no input changes it: cancelled is as final as succeeded.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// The state that an input leads to; `None` when it changes nothing.
    ///
    /// | state | cancel | pause | resume | succeed | fail |
    /// |---|---|---|---|---|---|
    /// | running | cancelled | paused | – | succeeded | failed |
    /// | paused | cancelled | – | running | succeeded | failed |
    /// | succeeded, failed, cancelled | – | – | – | – | – |
    ///
    /// A paused workflow ends when its last job ends: there is nothing left to resume.
    pub const fn apply(self, input: WorkflowInput) -> Option<Self> {
        match (self, input) {
            (Self::Running | Self::Paused, WorkflowInput::Cancel) => Some(Self::Cancelled),
            (Self::Running, WorkflowInput::Pause) => Some(Self::Paused),
            (Self::Paused, WorkflowInput::Resume) => Some(Self::Running),
            (Self::Running | Self::Paused, WorkflowInput::Succeed) => Some(Self::Succeeded),
            (Self::Running | Self::Paused, WorkflowInput::Fail) => Some(Self::Failed),
            _ => None,
        }
    }

    /// What a worker that holds a lease of this workflow is told.
    pub const fn directive(self) -> Directive {
        match self {
            Self::Running => Directive::Continue,
            Self::Paused => Directive::Pause,
            Self::Succeeded | Self::Failed | Self::Cancelled => Directive::Cancel,
        }
    }
}

/// How a workflow ends when nothing of it is live any more, or when its time is over.
///
/// `any_required_step_failed`: a step that is not optional failed, or a person ended it as failed or
/// cancelled. Steps that the release rule cancelled or skipped do not count: their cause does.
pub fn final_state(any_required_step_failed: bool, timed_out: bool) -> WorkflowState {
    if any_required_step_failed || timed_out {
        WorkflowState::Failed
    } else {
        WorkflowState::Succeeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prints the table of the documentation and compares it word by word.
    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        for &state in WorkflowState::ALL {
            table.push_str(state.as_str());
            for &input in WorkflowInput::ALL {
                table.push(' ');
                table.push_str(state.apply(input).map_or("-", WorkflowState::as_str));
            }
            table.push('\n');
        }
        let expected = "\
running cancelled paused - succeeded failed
paused cancelled - running succeeded failed
succeeded - - - - -
failed - - - - -
cancelled - - - - -
";
        assert_eq!(table, expected);
    }

    #[test]
    fn terminal_states_are_final() {
        for &state in WorkflowState::ALL {
            let moves = WorkflowInput::ALL.iter().any(|i| state.apply(*i).is_some());
            assert_eq!(state.is_terminal(), !moves);
            assert_eq!(state.is_terminal(), state.directive() == Directive::Cancel);
        }
    }

    #[test]
    fn the_end() {
        assert_eq!(final_state(false, false), WorkflowState::Succeeded);
        assert_eq!(final_state(true, false), WorkflowState::Failed);
        assert_eq!(final_state(false, true), WorkflowState::Failed);
        assert_eq!(final_state(true, true), WorkflowState::Failed);
    }

    #[test]
    fn words_round_trip() {
        for &one in WorkflowState::ALL {
            assert_eq!(WorkflowState::parse(one.as_str()), Some(one));
        }
        assert_eq!(WorkflowState::parse("waiting"), None);
    }
}
