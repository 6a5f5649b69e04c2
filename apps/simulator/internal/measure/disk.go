package measure

import (
	"errors"
	"os"
	"time"
)

// betweenProbes is the pause between two writes of a DiskProbe. A longer pause of a disk includes a write.
const betweenProbes = 20 * time.Millisecond

// DiskProbe writes a block to a disk repeatedly, and records the longest sync. Other work on the machine or
// its host can pause a disk for longer than the measured work takes.
type DiskProbe struct {
	stop chan struct{}
	done chan struct{}

	longest time.Duration
	err     error
}

// ProbeDisk writes to a file of its own in the folder, until Stop.
func ProbeDisk(folder string) (*DiskProbe, error) {
	f, err := os.CreateTemp(folder, "probe-")
	if err != nil {
		return nil, err
	}
	p := &DiskProbe{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.run(f)
		p.err = errors.Join(p.err, f.Close(), os.Remove(f.Name()))
	}()
	return p, nil
}

func (p *DiskProbe) run(f *os.File) {
	tick := time.NewTicker(betweenProbes)
	defer tick.Stop()
	block := make([]byte, 512)
	for {
		begun := time.Now()
		if _, err := f.WriteAt(block, 0); err != nil {
			p.err = err
			return
		}
		if err := f.Sync(); err != nil {
			p.err = err
			return
		}
		p.longest = max(p.longest, time.Since(begun))
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
	}
}

// Stop ends the probe, removes its file and returns the longest sync. Call it once.
func (p *DiskProbe) Stop() (longest time.Duration, err error) {
	close(p.stop)
	<-p.done
	return p.longest, p.err
}
