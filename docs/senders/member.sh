#!/usr/bin/env bash
# A member of a group whose messages one sequencer puts in order: what it does is at the end; how it tells comes first.

# trace EVENT DETAIL ORIGIN INCARNATION NUMBER VALUE [BYTES]: one record to the trace port. `env printf` writes it at
# once. The check sum is 0: a message is its own name and nothing more.
trace() {
    local bytes now=$((${EPOCHREALTIME/[.,]/}000 - ORDERBED_REALTIME_OFFSET_NS))
    printf -v bytes '6f740201%08x%04x%04x%08x%02x%02x%04x%04x0000%016x%016x%016x%016x%08x00000000' \
        "$ORDERBED_GROUP" "$ORDERBED_MEMBER" "$ORDERBED_INCARNATION" $((++sent)) \
        "$1" "$2" "$3" "$4" "$5" "$now" "$now" "$6" "${7:-0}"
    env printf "$(sed 's/../\\x&/g' <<<"$bytes")" >"/dev/udp/$ORDERBED_TRACE_IP/$ORDERBED_TRACE_PORT"
}

readonly sequencer=$1 messages=$2 members=$3 me="$ORDERBED_MEMBER $ORDERBED_INCARNATION"
delivered=0

deliver() {
    read -r origin incarnation number <&3
    trace 4 1 "$origin" "$incarnation" "$number" $((++delivered)) 8 # DELIVER, agreed, at this position
}

trace 1 0 $me 0 0 # START
until { exec 3<>"/dev/tcp/$sequencer/7000"; } 2>/dev/null; do sleep 0.05; done
echo ready
read -r _ # the cue "start"
for mine in $(seq "$messages"); do
    trace 2 0 $me "$mine" 0 8 # SUBMIT
    echo "$me $mine" >&3
    until deliver && [[ "$origin $incarnation $number" == "$me $mine" ]]; do :; done
done
while ((delivered < messages * members)); do deliver; done
trace 8 1 $me 0 "$messages" # STOP, everything done
echo drained
while read -r cue && [[ $cue != stop ]]; do :; done
