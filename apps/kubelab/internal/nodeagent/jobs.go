package nodeagent

// jobQueue runs at most width jobs at once. Other jobs wait in order. Only the loop calls its methods.
type jobQueue struct {
	width   int
	running int
	waiting []func() (job func())
}

// addJob queues a job. The loop calls prepare when it is the job's turn, so that the job acts on the state of
// that time. The job runs in a separate goroutine, and must make the loop call jobDone. prepare returns nil
// when nothing is left to do.
func (l *jobQueue) addJob(prepare func() (job func())) {
	if l.running >= l.width {
		l.waiting = append(l.waiting, prepare)
		return
	}
	if job := prepare(); job != nil {
		l.running++
		go job()
	}
}

func (l *jobQueue) jobDone() {
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
