//! The threads of a forward, and how they share its work.
//!
//! A decode step is some hundred pieces of work of a few microseconds each, every one of which waits
//! for the one before. A thread that falls asleep between two of them costs more than a piece, so
//! the threads of a [`Crew`] stay awake from a forward's start to its end, and sleep between forwards.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder, Yield};

/// Looks for work that find none before a thread offers its core to others.
const LOOKS: u32 = 256;

/// The threads of a model.
pub(crate) struct Crew {
    pool: ThreadPool,
    threads: usize,
}

impl Crew {
    pub(crate) fn new(threads: NonZeroUsize) -> Result<Self, ThreadPoolBuildError> {
        let threads = threads.get();
        let named = ThreadPoolBuilder::new().thread_name(|i| format!("model-{i}"));
        Ok(Self { pool: named.num_threads(threads).build()?, threads })
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on a thread of the crew, with `hands` of them awake.
    pub(crate) fn run(&self, hands: usize, work: impl FnOnce() + Send) {
        self.pool.install(|| {
            let leader = rayon::current_thread_index().expect("installed in the pool");
            let over = AtomicBool::new(false);
            rayon::scope(|scope| {
                if hands > 1 {
                    scope.spawn_broadcast(|_, at| {
                        let place = (at.index() + self.threads - leader) % self.threads;
                        if (1..hands).contains(&place) {
                            work_until(|| over.load(Ordering::Acquire));
                        }
                    });
                }
                let _over = Finally(|| over.store(true, Ordering::Release));
                work();
            });
        });
    }
}

/// Calls its function when it is dropped, also by a panic that others wait behind.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Takes part in what others of the pool share, until `over`.
fn work_until(over: impl Fn() -> bool) {
    let mut idle = 0;
    while !over() {
        match rayon::yield_now() {
            Some(Yield::Executed) => idle = 0,
            _ if idle < LOOKS => {
                idle += 1;
                std::hint::spin_loop();
            }
            _ => std::thread::yield_now(),
        }
    }
}

/// How many threads share a piece of work. Who works inside of one thread's share has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hands(usize);

impl Hands {
    /// The calling thread alone.
    pub(crate) const ONE: Self = Self(1);

    /// So many threads, at least one. Only inside of a [`Crew::run`] of as many.
    pub(crate) fn new(threads: usize) -> Self {
        Self(threads.max(1))
    }

    pub(crate) fn count(self) -> usize {
        self.0
    }

    /// Items of a share where `items` are cut into as many shares as there are hands.
    pub(crate) fn share(self, items: usize) -> usize {
        items.div_ceil(self.0).max(1)
    }

    /// Calls `f` once for each item. A thread takes the next item when it is done with one.
    pub(crate) fn each<I>(self, mut items: I, f: impl Fn(I::Item) + Sync)
    where
        I: Iterator<Item: Send> + Send,
    {
        if self.0 == 1 {
            return items.for_each(f);
        }
        // Nobody is asked to help with nothing, or with one item.
        let Some(first) = items.next() else { return };
        let Some(second) = items.next() else { return f(first) };
        let items = Mutex::new([first, second].into_iter().chain(items));
        let take = || {
            // Bound, so that the lock is not held while the item is worked on.
            let next = || lock(&items).next();
            while let Some(item) = next() {
                f(item);
            }
        };
        let busy = AtomicUsize::new(self.0 - 1);
        rayon::scope(|scope| {
            for _ in 1..self.0 {
                scope.spawn(|_| {
                    let _done = Finally(|| {
                        busy.fetch_sub(1, Ordering::Release);
                    });
                    take();
                });
            }
            take();
            // The scope would wait for the others too, but asleep.
            work_until(|| busy.load(Ordering::Acquire) == 0);
        });
    }
}

/// Scratch and iterators hold nothing that a panicked call could leave half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One scratch value per thread of a crew.
pub(crate) struct PerThread<T>(Vec<Mutex<T>>);

impl<T: Default> PerThread<T> {
    pub(crate) fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Mutex::default()).collect())
    }

    /// Lends the calling thread's value. While it is lent, work may be shared that does not ask for
    /// it: waiting for others, a thread takes up shares of what it waits for.
    ///
    /// # Panics
    /// Outside of the crew.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let thread = rayon::current_thread_index().expect("called by a thread of the crew");
        f(&mut lock(&self.0[thread]))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn crew(threads: usize) -> Crew {
        Crew::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn every_item_is_worked_on_once_and_is_done_when_each_returns() {
        for threads in [1, 2, 5] {
            let crew = crew(threads);
            for hands in 1..=threads {
                let mut items = vec![0u32; 1000];
                let mut rounds = 0;
                crew.run(hands, || {
                    for round in 1..50 {
                        let item = |item: &mut u32| *item += 1;
                        Hands::new(hands).each(items.iter_mut().take(round * 20), item);
                        assert_eq!(items.iter().sum::<u32>() as usize, 10 * round * (round + 1));
                        rounds += 1;
                    }
                });
                assert_eq!(rounds, 49);
            }
        }
    }

    #[test]
    fn hands_help_inside_of_a_share_of_the_scratch() {
        let crew = crew(3);
        let (outer, inner) = (PerThread::<u64>::new(3), PerThread::<u64>::new(3));
        crew.run(3, || {
            outer.with(|sum| {
                for i in 0..200 {
                    Hands::new(3).each(0..10u64, |j| inner.with(|sum| *sum += i * j));
                    *sum += i;
                }
            });
        });
        let sums = |of: &PerThread<u64>| of.0.iter().map(|sum| *lock(sum)).sum::<u64>();
        assert_eq!((sums(&outer), sums(&inner)), (19_900, 45 * 19_900));
    }

    #[test]
    fn a_panic_of_any_share_reaches_the_caller_and_leaves_the_crew_whole() {
        let crew = crew(4);
        for bad in 0..40 {
            let shares = || {
                crew.run(4, || Hands::new(4).each(0..40, |i| assert_ne!(i, bad, "bad share")));
            };
            let panic = catch_unwind(AssertUnwindSafe(shares)).expect_err("a share panics");
            let message = panic.downcast_ref::<String>().map_or("", String::as_str);
            assert!(message.contains("bad share"), "{message}");
        }
        let alone = || crew.run(4, || panic!("alone"));
        assert!(catch_unwind(AssertUnwindSafe(alone)).is_err());
        let done = AtomicUsize::new(0);
        crew.run(4, || {
            Hands::new(4).each(0..40, |_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(done.into_inner(), 40);
    }
}
