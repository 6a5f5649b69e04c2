package measure

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// realtimePriority is the lowest of the real-time class, which comes before everything that is not of it.
const realtimePriority = 1

// Realtime moves this process to the real-time class of the scheduler, and processes that it starts. Other work
// on the machine then delays none of them. normal moves this process back.
func Realtime() (normal func() error, err error) {
	err = schedule(unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: realtimePriority})
	if err != nil {
		return nil, fmt.Errorf("real-time class: %w: run as root, or give the program CAP_SYS_NICE", err)
	}
	return NormalTime, nil
}

// NormalTime moves this process to the normal class of the scheduler.
func NormalTime() error {
	return schedule(unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL})
}

// schedule sets the attributes of every thread of this process. A thread has those of the thread that made it, so
// that it looks again until it finds no new thread.
func schedule(attributes unix.SchedAttr) error {
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
