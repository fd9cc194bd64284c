//! What the caller lends: a clock, and an ear for progress.

/// What a long operation is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Turning texts into ids; counted in texts.
    Tokenising,
    /// Cutting prompts into blocks and hashing them; counted in prompts.
    Hashing,
    /// Replaying a round; counted in requests.
    Replaying,
}

/// The caller's clock and progress display.
pub struct Watch<'a> {
    /// Nanoseconds since some moment.
    pub now: &'a dyn Fn() -> u64,
    /// Told `(stage, done, of)` now and then, from any thread.
    pub progress: &'a (dyn Fn(Stage, u64, u64) + Sync),
}

impl Watch<'static> {
    /// No time passes, and nobody listens.
    pub const QUIET: Self = Self { now: &|| 0, progress: &|_, _, _| () };
}
