package proxy

import (
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/balance"
	"github.com/windlass-run/windlass/apps/gateway/internal/decide"
	"github.com/windlass-run/windlass/apps/gateway/internal/engine"
	"github.com/windlass-run/windlass/apps/gateway/internal/http1"
	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

const (
	// answerSize is the size of the buffer for an answer, in bytes. Its first answerRoom bytes are for the size of
	// a chunk, and its last answerTail bytes for the chunk's end.
	answerSize = 32 << 10
	answerRoom = 16
	answerTail = 2
)

// appendHead writes the head of the answer into out, without the end of the head.
func (d *direct) appendHead() {
	r := &d.answer
	b := d.out[:0]
	b = append(b, "HTTP/1.1 "...)
	b = append(strconv.AppendInt(b, int64(r.Status), 10), ' ')
	if len(r.Reason) > 0 {
		b = append(b, r.Reason...)
	} else {
		b = append(b, http.StatusText(r.Status)...)
	}
	b = append(b, "\r\n"...)
	length := false
	var names http1.Names
	if r.Names {
		names = http1.ConnectionNames(r.Fields)
	}
	for i := range r.Fields {
		f := &r.Fields[i]
		if answerDrops(f.Name, names) {
			continue
		}
		if len(f.Name) == len("content-length") && f.Is("content-length") {
			if length || r.ContentLength < 0 || r.Status < 200 || r.Status == http.StatusNoContent {
				continue
			}
			length = true
		}
		b = copyField(b, f)
	}
	d.out = b
}

// appendOwnFields writes the fields that the gateway adds to every answer, and the end of the head.
func (d *direct) appendOwnFields(closing, chunked bool) {
	b := appendField(d.out, RequestIDHeader, d.x.id)
	if !d.hasDate() {
		b = appendField(b, "Date", httpDate(time.Now()))
	}
	if chunked {
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	if closing {
		b = append(b, "Connection: close\r\n"...)
	}
	b = append(b, "\r\n"...)
	d.out = b
}

// hasDate reports whether the instance sent a Date.
func (d *direct) hasDate() bool {
	if d.x.failure != nil {
		return false
	}
	for i := range d.answer.Fields {
		if f := &d.answer.Fields[i]; len(f.Name) == len("date") && f.Is("date") {
			return true
		}
	}
	return false
}

// dates has the current Date. It is formatted at most once a second.
var dates atomic.Pointer[dateOf]

type dateOf struct {
	second int64
	text   string
}

func httpDate(now time.Time) string {
	if made := dates.Load(); made != nil && made.second == now.Unix() {
		return made.text
	}
	made := &dateOf{now.Unix(), now.UTC().Format(http.TimeFormat)}
	dates.Store(made)
	return made.text
}

// passInterim passes on an interim answer (1xx).
func (d *direct) passInterim() error {
	d.appendHead()
	d.out = appendField(d.out, RequestIDHeader, d.x.id)
	return d.writeOut(append(d.out, "\r\n"...))
}

// passAnswer passes on the answer as it arrives, and ends the lease.
func (d *direct) passAnswer(lease *upstream.Lease) engine.Outcome {
	x, r, g := &d.x, &d.answer, &d.got
	x.status = r.Status
	content := r.HasContent(string(d.r.Method))
	// Without a length, the content ends with the connection.
	until := content && !r.Chunked && r.ContentLength < 0
	closing := d.closesAfter()
	d.appendHead()
	d.appendOwnFields(closing, content && (r.Chunked || until))
	d.chunks = http1.Chunks{}
	kind, coded := "", ""
	for i := range r.Fields {
		switch f := &r.Fields[i]; len(f.Name) {
		case len("content-type"):
			if f.Is("content-type") {
				kind = string(f.Value)
			}
		case len("content-encoding"):
			if f.Is("content-encoding") {
				coded = string(f.Value)
			}
		}
	}
	x.beginContent(kind, coded)
	b := &relay{d: d, g: g, lease: lease, left: r.ContentLength}
	var err error
	switch {
	case !content:
		b.excess = len(g.rest) > 0
		err = d.writeOut(d.out)
	case r.Chunked:
		err = b.passChunked()
	case until:
		err = b.untilEnd()
	default:
		err = b.passCounted()
	}
	d.c.Unwatch() // because the watch sets a deadline on the instance's connection, which another request may get after Put
	if err == nil && g.whole && !b.excess && !r.Close && !until {
		d.p.pool.Put(lease.Address(), g.conn, time.Now())
	} else {
		_ = g.conn.Close() // bytes that may still arrive on the connection answer no request
	}
	d.conn.Store(nil)
	if b.broken != nil {
		x.failBegun(x.judgeFault(d.attemptFault(b.broken, 0), lease, b.broken))
	}
	if err == nil && lease.Observed() {
		lease.Fared(decide.Work(r.Status))
	}
	lease.End()
	return d.outcomeOf(err, closing)
}

// relay passes on an answer's content, with one write for each read.
type relay struct {
	d     *direct
	g     *got
	lease *upstream.Lease
	// left is how many bytes of the content are left, if the answer states its length.
	left int64
	// excess is whether bytes arrived after the answer.
	excess bool
	// broken is why the instance did not end the answer.
	broken error
	headed bool
}

// readPart reads the next part into the buffer after answerRoom.
func (b *relay) readPart() (p []byte, err error) {
	d := b.d
	now := time.Now()
	d.limitWait(now.Add(d.x.policy.Idle))
	if d.armed.After(d.late) { // armed is then still the deadline for the header
		if err := d.armDeadline(b.g.conn, d.late); err != nil {
			return nil, err
		}
	}
	in := (*d.in)[answerRoom : len(*d.in)-answerTail]
	n, err := d.readNext(b.g.conn, in)
	return in[:n], err
}

// sendPart sends p, and before it the head if the head was not sent yet. p is in the buffer of readPart.
func (b *relay) sendPart(p []byte) error {
	if b.headed {
		if len(p) == 0 {
			return nil
		}
		return b.d.writeOut(p)
	}
	b.headed = true
	b.d.out = append(b.d.out, p...)
	return b.d.writeOut(b.d.out)
}

func (b *relay) passCounted() error {
	for p := b.g.rest; ; {
		if int64(len(p)) > b.left {
			p, b.excess = p[:b.left], true
		}
		b.left -= int64(len(p))
		b.d.x.countContent(p)
		if err := b.sendPart(p); err != nil || b.left == 0 {
			return err
		}
		var err error
		if p, err = b.readPart(); err != nil {
			return b.breakOff(err)
		}
	}
}

// breakOff ends the connection, because the answer has begun and cannot be replaced.
func (b *relay) breakOff(err error) error {
	b.broken = err
	return err
}

// passChunked decodes the instance's chunks and sends their content in new chunks. Each new chunk has all the
// content of one read.
func (b *relay) passChunked() error {
	c := &b.d.chunks
	for p := b.g.rest; ; {
		n, used, err := c.Decode(p)
		if err != nil {
			return b.breakOff(err)
		}
		b.excess = used < len(p)
		p = p[:n]
		b.d.x.countContent(p)
		if err := b.sendChunk(p, c.Done()); err != nil || c.Done() {
			return err
		}
		if p, err = b.readPart(); err != nil {
			return b.breakOff(err)
		}
	}
}

func (b *relay) untilEnd() error {
	for p := b.g.rest; ; {
		b.d.x.countContent(p)
		if err := b.sendChunk(p, false); err != nil {
			return err
		}
		var err error
		if p, err = b.readPart(); err == io.EOF { //nolint:errorlint // Read returns io.EOF itself
			return b.sendChunk(nil, true)
		}
		if err != nil {
			return b.breakOff(err)
		}
	}
}

// sendChunk sends p as a chunk, and if it is the last one, also the end.
func (b *relay) sendChunk(p []byte, last bool) error {
	d := b.d
	if b.headed && !last && len(p) > 0 && len(p) <= len(*d.in)-answerRoom-answerTail && &p[0] == &(*d.in)[answerRoom] {
		// The size and the end are written around p, in its buffer.
		var size [answerRoom]byte
		text := append(strconv.AppendInt(size[:0], int64(len(p)), 16), "\r\n"...)
		from := answerRoom - len(text)
		copy((*d.in)[from:], text)
		copy((*d.in)[answerRoom+len(p):], "\r\n")
		return d.writeOut((*d.in)[from : answerRoom+len(p)+answerTail])
	}
	if b.headed {
		d.out = d.out[:0]
	}
	b.headed = true
	if len(p) > 0 {
		d.out = append(strconv.AppendInt(d.out, int64(len(p)), 16), "\r\n"...)
		d.out = append(append(d.out, p...), "\r\n"...)
	}
	if last {
		d.out = append(d.out, "0\r\n"...)
		trailers := d.chunks.Trailers()
		if b.lease.Observed() {
			trailers = takeReport(b.lease, trailers, decide.Work(d.answer.Status) == balance.Failed)
		}
		for _, f := range trailers {
			if name := http.CanonicalHeaderKey(string(f.Name)); keepsTrailer(name) {
				d.out = copyField(d.out, &f)
			}
		}
		d.out = append(d.out, "\r\n"...)
	}
	if len(d.out) == 0 {
		return nil
	}
	return d.writeOut(d.out)
}
