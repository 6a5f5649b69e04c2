package nodeagent

// lane runs jobs, no more than its width at once; the others wait in order. It
// belongs to the loop, which also makes every call of done.
type lane struct {
	width   int
	running int
	waiting []func() (job func())
}

// add has prepare called, by the loop, when it is the job's turn, so that the job
// does what is right then. The job runs in a goroutine of its own and is to see to
// it that the loop calls done. nil: there is nothing to do any more.
func (l *lane) add(prepare func() (job func())) {
	if l.running >= l.width {
		l.waiting = append(l.waiting, prepare)
		return
	}
	if job := prepare(); job != nil {
		l.running++
		go job()
	}
}

func (l *lane) done() {
	l.running--
	for len(l.waiting) > 0 && l.running < l.width {
		prepare := l.waiting[0]
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
		if job := prepare(); job != nil {
			l.running++
			go job()
		}
	}
	if len(l.waiting) == 0 {
		l.waiting = nil
	}
}
