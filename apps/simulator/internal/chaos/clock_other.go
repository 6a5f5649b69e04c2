//go:build !linux || !amd64

package chaos

import (
	"errors"
	"time"
)

// clocksCanJump is false here: see clock_linux_amd64.go.
const clocksCanJump = false

func setClock(int, time.Duration) error {
	return errors.New("the clock of another process can be set on Linux on amd64 only")
}
