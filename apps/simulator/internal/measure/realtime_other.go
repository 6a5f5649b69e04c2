//go:build !linux

package measure

import "errors"

// Realtime returns an error, because only Linux has the class.
func Realtime() (normal func() error, err error) {
	return nil, errors.New("the real-time class needs Linux")
}

// NormalTime does nothing: no process is in the real-time class.
func NormalTime() error { return nil }
