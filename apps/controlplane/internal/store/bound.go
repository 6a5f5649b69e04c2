package store

import (
	"context"
	"errors"
)

// Bound is a Store whose transactions are seen as T, the interface that one package declares. Tx must implement T.
type Bound[T any] struct{ s Store }

// Bind narrows s to T. Callers add an assignment by which the compiler checks that Tx satisfies T.
func Bind[T any](s Store) Bound[T] { return Bound[T]{s: s} }

// Update is Store.Update.
func (b Bound[T]) Update(ctx context.Context, fn func(T) error) error {
	return b.s.Update(ctx, narrowTx(fn))
}

// UpdateBatched is Store.UpdateBatched.
func (b Bound[T]) UpdateBatched(ctx context.Context, key, app string, fn func(T) (last func() error, err error)) error {
	return b.s.UpdateBatched(ctx, key, app, func(tx Tx) (last func() error, err error) {
		err = narrowTx(func(t T) (err error) {
			last, err = fn(t)
			return err
		})(tx)
		return last, err
	})
}

// Alone turns a function for UpdateBatched into one for Update.
func Alone(fn func(Tx) (last func() error, err error)) func(Tx) error {
	return func(tx Tx) error {
		last, err := fn(tx)
		if err != nil || last == nil {
			return err
		}
		return last()
	}
}

// View is Store.View.
func (b Bound[T]) View(ctx context.Context, fn func(T) error) error {
	return b.s.View(ctx, narrowTx(fn))
}

// Snapshot is Store.Snapshot.
func (b Bound[T]) Snapshot(ctx context.Context, fn func(T) error) error {
	return b.s.Snapshot(ctx, narrowTx(fn))
}

func narrowTx[T any](fn func(T) error) func(Tx) error {
	return func(tx Tx) error {
		t, ok := any(tx).(T)
		if !ok {
			return errors.New("store: transaction lacks a method of the bound interface")
		}
		return fn(t)
	}
}
