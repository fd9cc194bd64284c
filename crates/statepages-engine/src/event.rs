//! The closed set of things that can happen to an engine.

use statepages_page::RequestId;

use crate::connector::LoadDone;
use crate::request::Request;
use crate::runner::StepResult;

/// One event. Nothing changes an engine but events and steps, so a recorded list of both replays it.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A client wants a request computed.
    Submit(Request),
    /// A client no longer wants its request. Unknown and finished requests are ignored: the abort
    /// may have crossed the last token.
    Abort(RequestId),
    /// A runner has reported a batch.
    BatchDone(StepResult),
    /// A connector has reported a load.
    RemoteLoad(LoadDone),
    /// An operator wants nothing cached to be found any more (after new weights, for example).
    /// Queued and in-flight operations stay valid.
    ResetPrefixCache,
}
