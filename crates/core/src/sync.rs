//! Locks without poisoning: a thread that panics while it holds a lock does not make the lock unusable for the others.
//!
//! The data behind these locks is valid after every statement, so a panic leaves nothing half-done that a later reader
//! would have to fear. The names and signatures are those of `std::sync`, without the `Result`.

use std::sync::{self, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// A [`std::sync::Mutex`] that ignores poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Returns an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Returns the value of a mutex that no other thread can lock any more.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock. The guard unlocks it when it is dropped.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`std::sync::RwLock`] that ignores poisoning.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Returns an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for exclusive access.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`std::sync::Condvar`] that ignores poisoning.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

impl Condvar {
    /// Returns a condition variable without waiting threads.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Waits while the condition is true. The guard must be that of a [`Mutex`] of this module.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::{Mutex, RwLock};

    #[test]
    fn locks_stay_usable_after_a_panic_of_their_holder() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(2));
        std::thread::scope(|scope| {
            let panicking = scope.spawn(|| {
                let _guards = (mutex.lock(), lock.write());
                panic!("expected by the test");
            });
            assert!(panicking.join().is_err());
        });
        *mutex.lock() += 1;
        *lock.write() += 1;
        assert_eq!((*lock.read(), mutex.into_inner()), (3, 2));
    }
}
