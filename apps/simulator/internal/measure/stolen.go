package measure

import (
	"strconv"
	"strings"
)

const (
	// MostStolen is the share of the wanted processor time that the host may take from a window of a scenario
	// that compares delays. Such a window is measured again.
	MostStolen = 0.05
	// Windows limits how often a window is measured. The last measurement counts.
	Windows = 3
)

// ProcessorTime is what the kernel has counted since the machine started, in ticks of all processors.
type ProcessorTime struct {
	// Used is the time for which processes and the kernel had a processor.
	Used float64
	// Stolen is the time for which they were ready to run, but the host of this virtual machine gave the
	// processor to another one.
	Stolen float64
}

// ReadProcessorTime returns the times until now. It returns zeros on a system that does not count them.
func ReadProcessorTime() ProcessorTime {
	return parseProcessorTime(restAfter(read("/proc/stat"), "cpu", " "))
}

// parseProcessorTime parses the numbers of /proc/stat: user, nice, system, idle, iowait, irq, softirq and steal.
func parseProcessorTime(text string) (t ProcessorTime) {
	for i, field := range strings.Fields(text) {
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return ProcessorTime{}
		}
		switch i {
		case 0, 1, 2, 5, 6:
			t.Used += ticks
		case 7:
			t.Stolen = ticks
		}
	}
	return t
}

// StolenSince returns the share of the wanted processor time that the host gave to others since the earlier
// reading, from 0 to 1.
func (t ProcessorTime) StolenSince(earlier ProcessorTime) float64 {
	stolen := t.Stolen - earlier.Stolen
	if wanted := t.Used - earlier.Used + stolen; wanted > 0 {
		return stolen / wanted
	}
	return 0
}
