package controlplane

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// The test runs a small DNS server, and requires that lookupTXT asks it.
func TestDNSFlag_ServerIsAsked(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	go answer(server, map[string][]string{"_windlass.chat.example.com.": {"windlass-verify_1", "other"}})

	lookup := lookupTXT(server.LocalAddr().String())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	texts, err := lookup(ctx, "_windlass.chat.example.com.")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"windlass-verify_1", "other"}, texts)
	texts, err = lookup(ctx, "_windlass.none.example.com.")
	require.NoError(t, err, "a name without records is no error")
	require.Empty(t, texts)

	require.NoError(t, server.Close())
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = lookup(ctx, "_windlass.chat.example.com.")
	require.Error(t, err)
}

// answer serves TXT records until the connection is closed.
func answer(conn net.PacketConn, records map[string][]string) {
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		m.Response, m.Authoritative, m.Additionals = true, true, nil
		texts, ok := records[q.Name.String()]
		if !ok || q.Type != dnsmessage.TypeTXT {
			m.RCode = dnsmessage.RCodeNameError
		}
		for _, text := range texts {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1},
				Body:   &dnsmessage.TXTResource{TXT: []string{text}},
			})
		}
		if data, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(data, from)
		}
	}
}
