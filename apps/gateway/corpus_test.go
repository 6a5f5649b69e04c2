package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/apps/gateway"
)

// This file draws requests whose framing two programs may read differently. It uses a small grammar of names,
// separators, values and line ends for the two fields that frame a message, in both orders. After one reading of
// the fields, the body contains a second request.

var (
	// A line of the grammar is NAME SEPARATOR VALUE END. In oddNames, %s is the name.
	oddNames = []string{
		"%s", "%s ", "%s\t", " %s", "\t%s", "%s\x00", "\x00%s", "%s\x0b", "X: y\r%s", "X: y\n%s", "X: y\r\n %s", "\r\n%s", "\"%s\"", "%s\xff", "%s\u017f", "x%s", "%s:",
	}
	oddSeparators = []string{": ", ":", ":\t", " : ", ":\r\n ", ":\n ", ":\r", ":\x00", ":\x0b", ": \xa0", "=", " "}
	oddEnds       = []string{"\r\n", "\n", "\r", "\r\r\n", "\n\r", " \r\n", "\t\r\n", "\x00\r\n", ";\r\n", ",\r\n", "\r\n \r\n"}
	oddCodings    = []string{
		"chunked", "Chunked", "CHUNKED", "xchunked", "chunkedx", "chunked, identity", "identity, chunked", "chunked, chunked", "gzip, chunked", "identity",
		"chunked;q=1", "\"chunked\"", "'chunked'", "chun\x00ked", "chun ked", "chunke\u0301d", ",chunked", "chunked,", "", "deflate", "chunk", "\x0cchunked", "{chunked}", "chunked\r\nX: y",
	}
	oddLengths = []string{
		"%d", "+%d", "-%d", "0%d", "00%d", "0x%x", "%d.0", "%de0", "%d, %[1]d", "%d,0", "0, %d", "%d;", "%d a", "%d_0", "%d\x00", "\"%d\"", "%d\r\nContent-Length: 0", "%d\r\nContent-Length: %[1]d", "",
	}
	fieldNames = []func(string) string{
		func(s string) string { return s }, strings.ToLower, strings.ToUpper,
		func(s string) string { return strings.ReplaceAll(s, "-", "_") }, func(s string) string { return strings.ReplaceAll(s, "-", " ") },
	}
	oddVersions = []string{"HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/1.1 ", "http/1.1", "HTTP/2.0"}
)

// one draws an element.
func one[T any](rnd *rand.Rand, of []T) T { return of[rnd.IntN(len(of))] }

// odd draws the first element, which is plain, with a probability of 4/5, so that most cases have one or two oddities.
func odd[T any](rnd *rand.Rand, of []T) T {
	if rnd.IntN(5) > 0 {
		return of[0]
	}
	return one(rnd, of)
}

// drawFraming draws three requests to host for case n. The first one has an odd framing, so that the second one may
// be read as a part of its body. The last one ends the connection.
func drawFraming(rnd *rand.Rand, host string, n int) string {
	second := fmt.Sprintf("GET /second-%d HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", n, host)
	// Content-Length and the chunks disagree about the end of the body.
	body, length := "", 0
	switch rnd.IntN(5) {
	case 0: // by the chunks, the body ends before the second request
		body = "0\r\n\r\n" + second
		length = len(body)
	case 1: // by the length, the body ends before the second request
		body = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(second), second)
		length = strings.IndexByte(body, '\n') + 1
	case 2: // by both, the body ends before the second request
		body = "3\r\nabc\r\n0\r\n\r\n"
		length = len(body)
		body += second
	case 3: // by the length, the body is empty; it is not in chunks
		body, length = second, 0
	case 4: // the second request follows an odd chunk or odd trailers
		end := one(rnd, []string{"3\nabc\r\n0\r\n\r\n", "3\r\nabc\n0\r\n\r\n", "3;a\nabc\r\n0\r\n\r\n", "0\r\nX: y\n\r\n", "0\r\n\n", "0\n\n", "03 \r\nabc\r\n0\r\n\r\n", "0x3\r\nabc\r\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n", "3\r\nabc0\r\n\r\n", "0\r\nContent-Length: 9\r\n\r\n", "3;\r\r\nabc\r\n0\r\n\r\n", "-3\r\nabc\r\n0\r\n\r\n", "0\r\n X: y\r\n\r\n"})
		body, length = end+second, len(end)
	}
	field := func(name, value string) string {
		return fmt.Sprintf(odd(rnd, oddNames), odd(rnd, fieldNames)(name)) + odd(rnd, oddSeparators) + value + odd(rnd, oddEnds)
	}
	coding := func() string { return field("Transfer-Encoding", odd(rnd, oddCodings)) }
	size := func() string {
		format := odd(rnd, oddLengths)
		if format == "" {
			return field("Content-Length", "")
		}
		return field("Content-Length", fmt.Sprintf(format, length))
	}
	lines := ""
	switch rnd.IntN(6) {
	case 0:
		lines = size()
	case 1:
		lines = coding()
	case 2:
		lines = coding() + coding()
	case 3:
		lines = size() + size()
	case 4:
		lines = size() + coding()
	case 5:
		lines = coding() + size()
	}
	method := one(rnd, []string{"POST", "POST", "GET", "PUT", "OPTIONS"})
	return fmt.Sprintf("%s /first-%d %s\r\nHost: %s\r\n%s\r\n%s%s", method, n, odd(rnd, oddVersions), host, lines, body, strings.ReplaceAll(second, "second", "last"))
}

// Recorders refuse these two forms, but RFC 9112 allows a server to accept them: spaces after a value (section 5),
// and a Content-Length that comes twice with the same value (section 6.3).
var (
	spacesBehind = regexp.MustCompile(`([^ \t\r\n])[ \t]+\r\n`)
	lengthTwice  = regexp.MustCompile(`(?i)(\r\ncontent-length:[ \t]*([0-9]+))\r\ncontent-length:[ \t]*([0-9]+)\r\n`)
)

// strictly reads text as RFC 9112 requires, and returns the targets of its requests. It stops at the first malformed
// request, and after the first request in chunks, because a gateway closes the connection after it.
func strictly(text string) (requests []string) {
	line, rest, _ := strings.Cut(text, "\r\n")
	fields, body, _ := strings.Cut(rest, "\r\n\r\n")
	fields = spacesBehind.ReplaceAllString("\r\n"+fields+"\r\n", "$1\r\n")
	for {
		m := lengthTwice.FindStringSubmatch(fields)
		if len(m) < 4 || m[2] != m[3] {
			break
		}
		fields = strings.Replace(fields, m[0], m[1]+"\r\n", 1)
	}
	text = line + fields + "\r\n" + body
	in := bufio.NewReader(strings.NewReader(text))
	for {
		q, err := read(io.Discard, in)
		if err != nil {
			return requests
		}
		requests = append(requests, q.target)
		if len(q.header["transfer-encoding"]) > 0 {
			return requests
		}
	}
}

// exchange sends text on a new connection, and returns the status codes of the answers.
func (h *harness) exchange(text string) (answers []int) {
	conn, in, err := h.connect()
	for err != nil { // on a busy machine, the handshake may take longer than the timeout
		conn, in, err = h.connect()
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, text) // the gateway may refuse the text before its end
	for {
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			return answers
		}
		answers = append(answers, res.StatusCode)
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.Close {
			return answers
		}
	}
}

// isTimeout reports whether the gateway got no request before the timeout.
func isTimeout(answers []int) bool {
	return len(answers) == 0 || answers[0] == http.StatusRequestTimeout
}

// No request is smuggled: an instance gets a part of the client's bytes as a request only if it is a request by RFC
// 9112. All requests that an instance gets are well formed.
func TestFraming_RandomRequestsAreReadOneWay(t *testing.T) {
	bothEngines(t, func(t *testing.T) {
		ways := map[string]func(*testing.T, func(*gateway.Config)) *harness{
			"short": func(t *testing.T, change func(*gateway.Config)) *harness { return start(t, change) },
			"long": func(t *testing.T, change func(*gateway.Config)) *harness {
				return start(t, func(c *gateway.Config) { change(c); c.Engine = "net" })
			},
			"HTTPS": startTLSWith,
		}
		for name, begin := range ways {
			t.Run(name, func(t *testing.T) {
				cases, clients := 3000, 128 // most clients wait for a timeout
				if name == "HTTPS" {        // each case has a handshake
					cases, clients = 1000, 32
				}
				instance := startRecorder(t)
				r := begin(t, func(c *gateway.Config) {
					// In some cases the gateway waits for bytes that do not come.
					c.HeaderTimeout, c.SlowClient = 300*time.Millisecond, 300*time.Millisecond
				})
				r.put(t, echo(instance.address))
				rnd := rand.New(rand.NewPCG(1, 9112))
				texts := make([]string, cases)
				for n := range texts {
					texts[n] = drawFraming(rnd, "echo.local", n)
				}
				queue := make(chan int)
				answers := make([][]int, cases)
				sent := make([]int, cases)
				var all sync.WaitGroup
				for range clients {
					all.Go(func() {
						for n := range queue {
							// On a busy machine, a client of the test may send a part of its request after the timeout.
							for again := true; again; again = sent[n] < 20 && len(strictly(texts[n])) > 0 && isTimeout(answers[n]) {
								answers[n] = r.exchange(texts[n])
								sent[n]++
							}
						}
					})
				}
				for n := range texts {
					queue <- n
				}
				close(queue)
				all.Wait()
				r.stop()
				r.running.wait(t)
				instance.wait(t)
				require.Empty(t, instance.unsound)
				got := map[string]int{}
				instance.mu.Lock()
				defer instance.mu.Unlock()
				for _, q := range instance.whole {
					got[q.target]++
					require.Regexp(t, "^/(first|second|last)-[0-9]+$", q.target)
					_, number, _ := strings.Cut(q.target, "-")
					n, err := strconv.Atoi(number)
					require.NoError(t, err)
					require.LessOrEqual(t, got[q.target], sent[n], "%s came more often than it was sent", q.target)
				}
				seconds, refused := 0, 0
				for n, text := range texts {
					sound := strictly(text)
					for _, later := range []string{"second", "last"} {
						if name := fmt.Sprintf("/%s-%d", later, n); got[name] > 0 {
							seconds++
							require.Contains(t, sound, name, "%q: the request was smuggled", text)
						}
					}
					if got[fmt.Sprint("/first-", n)] == 0 {
						refused++
					}
				}
				t.Logf("%d cases: %d first requests refused, %d requests after the first", cases, refused, seconds)
				require.Greater(t, refused, cases/4)
				require.Greater(t, cases-refused, cases/20)
				require.Positive(t, seconds)
			})
		}
	})
}
