// The member of member.sh in Go: go build member.go
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

func own(name string) uint64 {
	value, err := strconv.ParseUint(os.Getenv(name), 10, 64)
	if err != nil {
		panic(err)
	}
	return value
}

func dial(kind, ip string, port uint64) net.Conn {
	for {
		if made, err := net.Dial(kind, fmt.Sprintf("%s:%d", ip, port)); err == nil {
			return made
		}
		time.Sleep(50 * time.Millisecond)
	}
}

var port = dial("udp", os.Getenv("ORDERBED_TRACE_IP"), own("ORDERBED_TRACE_PORT"))
var sent uint32

// One record to the trace port; the fields' types are their sizes on the wire. The check sum is 0: a message is its own
// name and nothing more.
func trace(event, detail uint8, origin, incarnation uint16, number, value uint64, size uint32) {
	sent++
	now := uint64(time.Now().UnixNano()) - own("ORDERBED_REALTIME_OFFSET_NS")
	binary.Write(port, binary.BigEndian, struct {
		magic                uint16
		version, count       uint8
		group                uint32
		node, nodeLife       uint16
		first                uint32
		event, detail        uint8
		origin, life, extra  uint16
		number, at, clock, v uint64
		size, checksum       uint32
	}{0x6f74, 2, 1, uint32(own("ORDERBED_GROUP")), uint16(own("ORDERBED_MEMBER")),
		uint16(own("ORDERBED_INCARNATION")), sent,
		event, detail, origin, incarnation, 0, number, now, now, value, size, 0})
}

func main() {
	messages, _ := strconv.ParseUint(os.Args[2], 10, 64)
	members, _ := strconv.ParseUint(os.Args[3], 10, 64)
	me, life := uint16(own("ORDERBED_MEMBER")), uint16(own("ORDERBED_INCARNATION"))
	cues := bufio.NewScanner(os.Stdin)
	trace(1, 0, me, life, 0, 0, 0) // START
	connection := dial("tcp", os.Args[1], 7000)
	orders := bufio.NewReader(connection)
	var origin, incarnation uint16
	var number, delivered uint64
	deliver := func() {
		if _, err := fmt.Fscanln(orders, &origin, &incarnation, &number); err != nil {
			panic(err)
		}
		delivered++
		trace(4, 1, origin, incarnation, number, delivered, 8) // DELIVER, agreed, at this position
	}
	fmt.Println("ready")
	cues.Scan() // "start"
	for mine := uint64(1); mine <= messages; mine++ {
		trace(2, 0, me, life, mine, 0, 8) // SUBMIT
		fmt.Fprintf(connection, "%d %d %d\n", me, life, mine)
		for deliver(); origin != me || incarnation != life || number != mine; {
			deliver()
		}
	}
	for delivered < messages*members {
		deliver()
	}
	trace(8, 1, me, life, 0, messages, 0) // STOP, everything done
	fmt.Println("drained")
	for cues.Scan() && cues.Text() != "stop" {
	}
}
