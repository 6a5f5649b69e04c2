//go:build !linux || !(amd64 || arm64)

package portguard

import (
	"context"
	"errors"
)

// Guard keeps the instances of an agent from each other's ports.
type Guard struct{}

// Open returns an error, because this platform has no guard.
func Open(uint32, uint32) (*Guard, error) {
	return nil, errors.New("port isolation needs Linux on amd64 or arm64")
}

// Run returns when ctx ends.
func (*Guard) Run(ctx context.Context, _ func(error)) { <-ctx.Done() }

// Reserve does nothing.
func (*Guard) Reserve(uint32, ...int) error { return nil }

// Free does nothing.
func (*Guard) Free(...int) error { return nil }

// Keep does nothing.
func (*Guard) Keep(map[int]bool) error { return nil }

// Close does nothing.
func (*Guard) Close() error { return nil }

// Remove does nothing, because this platform has no guard.
func Remove(uint32, uint32) error { return nil }
