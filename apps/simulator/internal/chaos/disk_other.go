//go:build !linux

package chaos

import "errors"

func mountDisk(string, int) error { return errors.New("only Linux has disks in memory") }

func unmountDisk(string) error { return nil }
