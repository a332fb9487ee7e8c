# Makes the text that the tiny model is pretrained on: a sentence of a harbour log and a question -> parts of the sentence.
#
#     awk -v seed=1 -v rows=50000 -f generate.awk > pretrain.jsonl
#
#     The ferry Morina docked at berth 7 at 14:30 with 320 crates. Say time, ship.   ->   Noted: 14:30, Morina
#
# So the model learns to find and to copy, names that it never met included (they are random syllables and letters); of the
# records of examples/skill it learns nothing. The same bytes come out of every awk: numbers are drawn by a generator of
# our own, not by rand().

# "minimal standard" generator (Park and Miller 1988); products stay below 2^46, exact in a double.
function draw(n) {
    state = (state * 16807) % 2147483647
    return int(state / 2147483647 * n)
}
function pick(list,    parts, n) {
    n = split(list, parts, ",")
    return parts[1 + draw(n)]
}

# Half of the names are syllables, half are letters: copying has to work whatever comes after what.
function name(    n, text) {
    text = ""
    if (draw(2))
        for (n = 1 + draw(4); n > 0; n--)
            text = text pick("b,c,ch,d,f,g,h,j,k,l,m,n,p,ph,r,s,t,th,v,w,,,") pick("a,e,i,o,u,ea,ia,y") pick(",,,,n,r,l,s,ll,nd")
    else
        for (n = 4 + draw(6); n > 0; n--) text = text substr("abcdefghijklmnopqrstuvwxyzaeiounrstl", 1 + draw(36), 1)
    return toupper(substr(text, 1, 1)) substr(text, 2)
}

function sentence(way, verb,    n) {
    n = draw(6)
    if (way == "arrival") {
        verb = pick("docked,arrived,moored,came in,tied up")
        if (n == 0) return "The KIND SHIP " verb " at berth BERTH at TIME with COUNT CARGO."
        if (n == 1) return "At TIME the KIND SHIP " verb " at berth BERTH carrying COUNT CARGO."
        if (n == 2) return "Berth BERTH: the SHIP, a KIND, " verb " at TIME with COUNT CARGO."
        if (n == 3) return "With COUNT CARGO aboard, the KIND SHIP " verb " at berth BERTH at TIME."
        if (n == 4) return "TIME. SHIP (KIND) " verb " at berth BERTH, bringing COUNT CARGO."
        return "COUNT CARGO reached us on the KIND SHIP, which " verb " at berth BERTH at TIME."
    }
    verb = pick("left,sailed from,departed from,cast off from,put out from")
    if (n == 0) return "The KIND SHIP " verb " berth BERTH at TIME with COUNT CARGO."
    if (n == 1) return "At TIME the KIND SHIP " verb " berth BERTH carrying COUNT CARGO."
    if (n == 2) return "Berth BERTH: the SHIP, a KIND, left at TIME with COUNT CARGO."
    if (n == 3) return "Loaded with COUNT CARGO, the KIND SHIP " verb " berth BERTH at TIME."
    if (n == 4) return "TIME. SHIP (KIND) " verb " berth BERTH, taking COUNT CARGO."
    return "COUNT CARGO went out on the KIND SHIP, which " verb " berth BERTH at TIME."
}

# Three to six parts in any order: "Say time, ship." and "Noted: 14:30, Morina".
function question(parts,    keys, i, n, swap, asked, answer, at) {
    split("way,kind,ship,berth,time,count", keys, ",")
    n = 3 + draw(4)
    for (i = 1; i <= n; i++) {
        at = i + draw(7 - i)
        swap = keys[i]; keys[i] = keys[at]; keys[at] = swap
        asked = asked (i > 1 ? ", " : " ") keys[i]
        answer = answer (i > 1 ? ", " : " ") parts[keys[i]]
    }
    return "Say" asked ".\"}, {\"role\": \"assistant\", \"content\": \"Noted:" answer
}

function row(    parts, text) {
    parts["way"] = pick("arrival,departure")
    parts["ship"] = name()
    parts["kind"] = pick("ferry,trawler,barge,tanker,schooner,freighter,steamer,cutter")
    parts["berth"] = 1 + draw(99)
    parts["time"] = sprintf("%02d:%02d", draw(24), draw(60))
    parts["count"] = draw(4) ? 100 + draw(900) : 10 + draw(90)
    text = sentence(parts["way"])
    gsub(/KIND/, parts["kind"], text)
    gsub(/SHIP/, parts["ship"], text)
    gsub(/BERTH/, parts["berth"], text)
    gsub(/TIME/, parts["time"], text)
    gsub(/COUNT/, parts["count"], text)
    gsub(/CARGO/, pick("crates,barrels,sacks,pallets,boxes,drums,bales,casks"), text)
    return "{\"messages\": [{\"role\": \"user\", \"content\": \"" text " " question(parts) "\"}]}"
}

BEGIN {
    state = seed == "" ? 1 : seed + 0
    for (i = 0; i < 20; i++) draw(2)
    for (i = 0; i < (rows == "" ? 50000 : rows + 0); i++) print row()
}
