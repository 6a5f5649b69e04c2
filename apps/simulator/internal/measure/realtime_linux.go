package measure

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// realtimePriority is the lowest priority of the real-time class, which precedes all other classes.
const realtimePriority = 1

// Realtime moves this process, and processes that it starts, to the real-time class of the scheduler, so that
// other work on the machine does not delay them. normal moves this process back.
func Realtime() (normal func() error, err error) {
	err = setSchedule(unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: realtimePriority})
	if err != nil {
		return nil, fmt.Errorf("real-time class: %w: run as root, or give the program CAP_SYS_NICE", err)
	}
	return NormalTime, nil
}

// NormalTime moves this process to the normal class of the scheduler.
func NormalTime() error {
	return setSchedule(unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL})
}

// setSchedule sets the attributes of every thread of this process. A new thread has the attributes of the thread
// that created it, so that schedule repeats until it finds no new thread.
func setSchedule(attributes unix.SchedAttr) error {
	done := map[int]bool{}
	for found := true; found; {
		found = false
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err != nil {
				return err
			}
			if done[id] {
				continue
			}
			done[id], found = true, true
			if err := unix.SchedSetAttr(id, &attributes, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}
